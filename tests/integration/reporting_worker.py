"""A worker without torch whose heartbeats report its phase, and runs of such workers; `started` is a fixture."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from frostline_contract.plan import Plan
from frostline_proto.v1 import control_pb2 as pb
from tests.integration.scripted_worker import CALL_SECONDS, ScriptedWorker
from tests.integration.scripted_world import World

FLOOR = 1.5
CONTROLLER = {"heartbeat_seconds": 0.2, "dead_after_seconds": 30.0, "start_timeout_seconds": 5.0, "hang_floor_seconds": FLOOR}
UNITS = range(6)
USUAL = {"schedule": 0.02, "exchange": 0.01, "vote": 0.01}


class ReportingWorker(ScriptedWorker):
    """A worker whose heartbeats report its phase, since when, and whether it waits for others."""

    stands: dict[str, Any] | None = None
    busy = 0.0

    def stand(self, phase: str, waiting: bool = False, step: int = 20, p99: dict[str, float] | None = None) -> None:
        self.stands = {"phase": phase, "waiting": waiting, "since": time.monotonic(), "p99": USUAL if p99 is None else p99}
        self.step = step

    def heartbeat(self, step: int | None = None, timeout: float = CALL_SECONDS) -> pb.HeartbeatResponse:
        self.step = self.step if step is None else step
        stands = self.stands or {"phase": "schedule", "waiting": False, "since": time.monotonic(), "p99": {}}
        age = time.monotonic() - stands["since"]
        request = pb.HeartbeatRequest(
            worker_id=self.worker_id, generation=self.generation, step=self.step, phase=stands["phase"], phase_seconds=age,
            waiting_seconds=age if stands["waiting"] else 0.0, phase_p99_seconds=stands["p99"], busy_seconds=self.busy,
            step_parts={"schedule": self.busy},
        )  # fmt: skip
        return self.stub.Heartbeat(request, timeout=timeout)


@pytest.fixture
def started(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[World, Plan]]:
    """Start a run of that many workers, all members of the first plan, at step 20."""
    monkeypatch.setattr("tests.integration.scripted_world.ScriptedWorker", ReportingWorker)

    def make(count: int, wanted: int = 0, **controller: float) -> tuple[World, Plan]:
        run = world(placement={"workers": wanted or count}, controller={**CONTROLLER, **controller})
        plan = run.start(count)
        assert len(plan.placement.workers) == count
        run.at(20)
        return run, plan

    return make


def hangs(run: World) -> list[dict]:
    return [event for event in run.lines("events.jsonl") if event["kind"] == "hang"]
