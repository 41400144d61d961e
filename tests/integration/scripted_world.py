"""A run with its real controller process and scripted workers; `world` is the fixture that makes and ends it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frostline_contract.plan import Plan
from tests.integration.faulty_controller import PLANTED
from tests.integration.scripted_worker import Operator, ScriptedWorker, make_run, start_controller, stop, wait_for


class World:
    """A run with its controller process and scripted workers. script: runs the controller with faults planted."""

    def __init__(self, folder: Path, script: str = "", **sections: object) -> None:
        self.folder = make_run(folder / "run", **sections)
        self.controller = start_controller(self.folder, script=script)
        self.workers: list[ScriptedWorker] = []
        self.operator = Operator(self.folder)

    def join(self, count: int) -> list[ScriptedWorker]:
        first = len(self.workers)
        fresh = [ScriptedWorker(self.folder, first + i).join() for i in range(count)]
        self.workers += fresh
        return fresh

    def start(self, count: int = 2) -> Plan:
        """All workers join and enter the first plan."""
        plans = [worker.next_plan("fresh") for worker in self.join(count)]
        for worker in self.workers:
            if worker.worker_id in plans[0].placement.workers:
                worker.enter(plans[0], 0)
        return plans[0]

    def at(self, step: int) -> None:
        for worker in self.workers:
            worker.heartbeat(step)

    def members(self, plan: Plan) -> list[ScriptedWorker]:
        """The plan's workers by global rank."""
        by_id = {worker.worker_id: worker for worker in self.workers}
        return [by_id[worker_id] for worker_id in plan.placement.workers]

    def kill(self, worker: ScriptedWorker) -> None:
        """SIGKILL: its stream closes, and its process's parent says so."""
        worker.silence()
        next(other for other in self.workers if other is not worker and not other.silent).told_of_end(worker)

    def checkpoint(self, step: int, lineage: int = 0, generation: str = "1.1") -> None:
        """A complete checkpoint of epoch 0."""
        manifest = self.folder / "checkpoints" / "0" / generation / str(step) / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"lineage": lineage, "step": step}))

    def restart_controller(self) -> None:
        """SIGKILL, and a new one that finds what it left; workers connect again by themselves."""
        self.controller.kill()
        self.controller.wait(10)
        self.operator.close()
        self.controller = start_controller(self.folder)
        self.operator = Operator(self.folder)

    def plant(self, place: str, times: int = 1, delay: float = 0.0, fails: bool = True) -> None:
        """Writes of a controller that runs by faulty_controller.py meet this from now on."""
        (self.folder / PLANTED).write_text(json.dumps({place: (times, delay, fails)}))

    def met(self, place: str) -> None:
        """Wait until everything planted at a place has been met."""
        wait_for(lambda: json.loads((self.folder / PLANTED).read_text())[place][0] == 0, f"{place} fails")

    def lines(self, name: str) -> list[dict]:
        return [json.loads(line) for line in (self.folder / name).read_text().splitlines()]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.operator.close()
        stop(self.controller)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**sections: object) -> World:
        made.append(World(tmp_path, **sections))
        return made[-1]

    yield make
    for one in made:
        one.close()
