"""A run with its real controller process and scripted workers; the fixture `world` makes and ends it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frostline_contract.plan import Plan
from tests.integration.faulty_controller import PLANTED
from tests.integration.scripted_worker import Operator, ScriptedWorker, make_run, start_controller, stop, wait_for


class World:
    """A run with its controller process and scripted workers. script: a file that runs the controller with planted faults."""

    def __init__(self, folder: Path, script: str = "", **sections: object) -> None:
        self.folder, self._script = make_run(folder / "run", **sections), script
        self.controller = start_controller(self.folder, script=script)
        self.workers: list[ScriptedWorker] = []
        self.operator = Operator(self.folder)

    def join(self, count: int) -> list[ScriptedWorker]:
        """Let so many workers join. All are made before the first registers, with which a run's wait for the others begins."""
        first = len(self.workers)
        fresh = [ScriptedWorker(self.folder, first + i) for i in range(count)]
        self.workers += fresh
        for worker in fresh:
            worker.join()
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
        """Return the plan's workers by global rank."""
        by_id = {worker.worker_id: worker for worker in self.workers}
        return [by_id[worker_id] for worker_id in plan.placement.workers]

    def kill(self, worker: ScriptedWorker) -> None:
        """Kill a worker as by SIGKILL: its stream closes, and its process's parent reports the end."""
        worker.silence()
        next(other for other in self.workers if other is not worker and not other.silent).reported_end_of(worker)

    def checkpoint(self, step: int, lineage: int = 0, generation: str = "1.1") -> None:
        """Write a complete checkpoint of run epoch 0."""
        manifest = self.folder / "checkpoints" / "0" / generation / str(step) / "manifest.json"
        manifest.parent.mkdir(parents=True)
        manifest.write_text(json.dumps({"lineage": lineage, "step": step}))

    def restart_controller(self, *extra: str) -> None:
        """Send SIGKILL and start a new controller, which finds the durable state; workers reconnect by themselves."""
        self.controller.kill()
        self.controller.wait(60)
        self.operator.close()
        self.controller = start_controller(self.folder, *extra, script=self._script)
        self.operator = Operator(self.folder)

    def plant(self, place: str, times: int = 1, delay: float = 0.0, fails: bool = True) -> None:
        """Plant a delay or failure for the writes of a controller by faulty_controller.py, which may read at any time."""
        draft = self.folder / "to_plant.json"
        draft.write_text(json.dumps({place: (times, delay, fails)}))
        draft.replace(self.folder / PLANTED)

    def met(self, place: str) -> None:
        """Wait until every fault planted at a place has occurred."""
        wait_for(lambda: json.loads((self.folder / PLANTED).read_text())[place][0] == 0, f"{place} fails")

    def lines(self, name: str) -> list[dict]:
        return lines_of(self.folder / name)

    def events(self, kind: str) -> list[dict]:
        """Return the events of one kind that the run has written so far."""
        return events_of(self.folder, kind)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.operator.close()
        stop(self.controller)


def lines_of(file: Path) -> list[dict]:
    whole, _, _ = file.read_text().rpartition("\n")  # the last line may be half written
    return [json.loads(line) for line in whole.splitlines()]


def events_of(folder: Path, kind: str) -> list[dict]:
    """Return the events of one kind in a run directory."""
    return [line for line in lines_of(folder / "events.jsonl") if line["kind"] == kind]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(**sections: object) -> World:
        made.append(World(tmp_path / f"again-{len(made)}" if made else tmp_path, **sections))
        return made[-1]

    yield make
    for one in made:
        one.close()
