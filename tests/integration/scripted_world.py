"""A run with its real controller process and scripted workers; `world` is the fixture that makes and ends it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frostline_contract.plan import Plan
from tests.integration.scripted_worker import Operator, ScriptedWorker, make_run, start_controller, stop


class World:
    """A run with its controller process and scripted workers."""

    def __init__(self, folder: Path, **sections: object) -> None:
        self.folder = make_run(folder / "run", **sections)
        self.controller = start_controller(self.folder)
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
