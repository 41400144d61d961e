"""Workers that ask to go while a plan that names them is prepared: none exits in the middle of it."""

import asyncio
from pathlib import Path

from frostline_contract.plan import Plan
from frostline_contract.worker_state import WorkerState
from frostline_controller.serving.streams import StreamQueue
from frostline_proto.v1 import control_pb2 as pb
from tests.unit.controller.test_service_sizing import Stage, first_plan, leading

JOB = {
    "placement": {"workers": 3, "min_workers": 1, "initial_pp_degree": 1},
    "controller": {"join_settle_seconds": 0.1, "join_pause_seconds": 0.1},
}
JOINER = "uid-2/1"


class Received:
    """The messages that a worker was sent, in order."""

    def __init__(self, outbox: StreamQueue) -> None:
        self._outbox, self.messages = outbox, list[pb.WatchPlanResponse]()
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while (message := await self._outbox.get()) is not None:
            self.messages.append(pb.WatchPlanResponse.FromString(message))

    def generations(self, kind: str) -> list[int]:
        """Counters of the plans that a kind of message is about."""
        return [getattr(one, kind).generation.counter for one in self.messages if one.WhichOneof("message") == kind]

    @property
    def may_leave(self) -> bool:
        return any(one.WhichOneof("message") == "end" for one in self.messages)


async def prepared_with_joiner(stage: Stage) -> tuple[Plan, Received]:
    """Two workers train, a third has joined, and a plan with the third is prepared."""
    await first_plan(stage, 0, 1)
    received = Received(stage.run.outbox.streams.open(JOINER))
    await stage.join(2)
    plan = await stage.until(lambda: stage.facts.state.prepared, "a plan with the joiner")
    assert JOINER in plan.placement.workers
    return plan, received


def test_a_plan_that_nobody_votes_for_yet_goes_before_its_leaver_does(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **JOB) as stage:
            plan, received = await prepared_with_joiner(stage)
            stage.controller.departures.note(JOINER, "SIGTERM", WorkerState.LEAVING)
            await stage.until(lambda: received.generations("withdraw"), "the plan is withdrawn")
            assert not received.may_leave, "members may still switch to what they have not heard is withdrawn"
            await stage.enter(stage.facts.current, plan.switch_until + 1)
            await stage.until(lambda: received.may_leave, "the plan is forgotten, and its leaver may go")
            assert stage.ordinals(stage.facts.current) == [0, 1]
            assert stage.store.events.counts["failure"] == 0

    asyncio.run(story())


def test_a_plan_that_may_be_voted_for_keeps_its_leaver_until_the_plan_behind_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **JOB) as stage:
            plan, received = await prepared_with_joiner(stage)
            for worker_id in plan.participants:
                stage.controller.reshaping.note_ready(worker_id, pb.ReadyRequest(worker_id=worker_id, ready=True))
            await stage.until(lambda: received.generations("ready"), "all may vote for the plan")
            stage.controller.departures.note(JOINER, "SIGTERM", WorkerState.LEAVING)
            await stage.enter(plan, plan.switch_from)
            assert not received.may_leave
            following = await stage.until(lambda: stage.facts.state.prepared, "a plan without the leaver")
            assert JOINER not in following.placement.workers
            await stage.enter(following, following.switch_from)
            await stage.until(lambda: received.may_leave, "it may go")

    asyncio.run(story())


def test_a_leaver_whose_plan_is_dropped_gets_another_one(tmp_path: Path) -> None:
    """The plan without it also took a joiner in, which could not connect."""

    async def story() -> None:
        async with leading(tmp_path, **JOB) as stage:
            plan, _ = await prepared_with_joiner(stage)
            stage.controller.departures.note("uid-1/1", "SIGTERM", WorkerState.LEAVING)
            following = await stage.until(lambda: stage.facts.state.prepared not in (None, plan), "a plan without the leaver")
            following = stage.facts.state.prepared
            assert following is not None and stage.ordinals(following) == [0, 2]
            await stage.controller.reshaping.drop("trainer-2 cannot connect to the others")
            again = await stage.until(lambda: stage.facts.state.prepared, "a plan for the same leaver")
            assert 1 not in stage.ordinals(again)

    asyncio.run(story())
