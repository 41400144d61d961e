"""Heartbeats in the controller, and broadcasts: facts are recorded, answers are sent, and all workers share the same bytes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from frostline_controller.serving import servicer
from frostline_controller.serving.servicer import ControlServicer
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from tests.unit.controller.test_service_sizing import Stage, first_plan, leading


async def said(*steps: int) -> AsyncIterator[pb.HeartbeatsRequest]:
    for step in steps:
        heartbeat = pb.HeartbeatRequest(
            worker_id="uid-0/1", step=step, phase="vote", phase_p99_seconds={"vote": 0.5}, step_parts={"vote": 0.25},
            generation=plan_pb2.GenerationId(incarnation=1, counter=step),
        )  # fmt: skip
        yield pb.HeartbeatsRequest(heartbeat=heartbeat)


def test_a_stream_of_heartbeats_is_answered_one_by_one_and_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        stage = Stage(tmp_path)
        control = ControlServicer(stage.controller)
        answers = [answer.heartbeat.known async for answer in control.Heartbeats(said(1), None)]
        assert answers == [False], "nobody has registered"
        await stage.join(0)
        answers = [answer.heartbeat.known async for answer in control.Heartbeats(said(1, 2, 3), None)]
        assert answers == [True, True, True]
        worker = stage.facts.members.get("uid-0/1")
        assert worker is not None and worker.generation is not None
        assert (worker.step, worker.phase, worker.generation.counter) == (3, "vote", 3)
        assert (dict(worker.phase_p99), dict(worker.step_parts)) == ({"vote": 0.5}, {"vote": 0.25})
        monkeypatch.setattr(servicer, "HEARTBEATS_SECONDS", -1.0)
        assert len([answer async for answer in control.Heartbeats(said(4, 5), None)]) == 1, "its caller is checked again"
        assert worker.step == 4

    asyncio.run(run())


def test_a_quiet_heartbeat_is_answered_only_where_the_worker_is_not_known(tmp_path: Path) -> None:
    async def quiet(*steps: int) -> AsyncIterator[pb.HeartbeatsRequest]:
        async for request in said(*steps):
            request.quiet = request.heartbeat.step != 2
            yield request

    async def run() -> None:
        stage = Stage(tmp_path)
        control = ControlServicer(stage.controller)
        answers = [answer.heartbeat.known async for answer in control.Heartbeats(quiet(1), None)]
        assert answers == [False], "it has to register"
        await stage.join(0)
        assert len([answer async for answer in control.Heartbeats(quiet(1, 2, 3), None)]) == 1
        worker = stage.facts.members.get("uid-0/1")
        assert worker is not None and worker.step == 3, "a quiet one is heard as any other"

    asyncio.run(run())


def test_a_plan_is_serialized_once_for_all_who_hear_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with leading(tmp_path) as stage:
            queues = [stage.run.outbox.streams.open(f"uid-{ordinal}/1") for ordinal in (0, 1)]
            await first_plan(stage, 0, 1)
            first, second = [await asyncio.wait_for(queue.get(), 60.0) for queue in queues]
            assert first is second
            plan = stage.facts.current
            assert plan is not None and stage.run.outbox.plan_message(plan) is first
            assert pb.WatchPlanResponse.FromString(first).plan.placement.workers == list(plan.placement.workers)
            assert stage.run.outbox.plan_message(stage.controller.choosing.stamped(plan)) is not first, (
                "another plan has a message of its own"
            )

    asyncio.run(run())
