"""What is durable and was not told, or not done, is told and done by the next controller."""

import asyncio
from pathlib import Path

import pytest

from frostline_contract.job.automatic import Settled
from frostline_contract.run_status import RunStatus
from frostline_controller.run.durable import FailedDevice
from frostline_proto.v1 import control_pb2 as pb
from tests.unit.controller.test_service_sizing import Stage, ask, first_plan, leading


@pytest.mark.parametrize("by", ["annotation", "a scale request"])
def test_a_request_outlives_the_controller_that_has_read_it(tmp_path: Path, by: str) -> None:
    async def read_and_die(workers: int) -> None:
        stage = Stage(tmp_path)
        await stage.controller.start()
        ask(stage, by, workers)
        await stage.run.pods.reread()
        assert await stage.controller.sizing.take_requests() is not None
        stage.run.close()

    async def story() -> None:
        async with leading(tmp_path) as stage:
            await first_plan(stage, 0, 1)
        await read_and_die(0)
        async with leading(tmp_path) as stage:
            await stage.reported("command", f"suspend by {by}")
            stage.controller.ending.note_outcome(pb.RunOutcome(status="suspended", steps=3))
            await stage.until(lambda: stage.facts.state.state == "suspended" and stage.replicas == 0, "suspended")
        await read_and_die(1)
        async with leading(tmp_path) as stage:
            await stage.reported("command", f"resume by {by}")
            await stage.until(lambda: stage.replicas == 1, "one pod is asked for again")
            assert (stage.facts.state.state, stage.facts.state.requested_workers) == ("waiting", 1)

    asyncio.run(story())


@pytest.mark.parametrize("between", [False, True], ids=["while members save", "as it is ended"])
def test_a_cancel_outlives_the_controller_that_has_taken_it(tmp_path: Path, between: bool) -> None:
    """Members save only after that controller's death; or it dies when the result is claimed, and nothing else is written."""

    async def cancel_and_die() -> None:
        async with leading(tmp_path) as stage:
            await first_plan(stage, 0, 1)
            if between:
                await stage.store.commit(state=RunStatus.WAITING, paused=True)
                stage.controller.bookkeeping.close = die  # type: ignore[method-assign]
            cancelled = asyncio.create_task(stage.controller.commands.accept(pb.CommandRequest(kind="cancel")))
            await stage.until(lambda: stage.facts.state.cancelled, "the cancel is durable")
            cancelled.cancel()

    async def die(now: float) -> None:
        raise OSError("the disk is full")

    async def story() -> None:
        await cancel_and_die()
        async with leading(tmp_path) as stage:
            stage.controller.ending.note_outcome(pb.RunOutcome(status="suspended", message="cancel by command", steps=1))
            await stage.until(lambda: stage.facts.ended, "its end")
            assert (stage.facts.state.state, stage.facts.state.cancelled) == ("cancelled", False)
            for kind in ("resume", "suspend"):
                done = asyncio.create_task(stage.controller.commands.accept(pb.CommandRequest(kind=kind)))
                await stage.until(done.done, f"the {kind} is carried out")
            assert stage.facts.state.state == "suspended", "a run that has resumed is cancelled no more"

    asyncio.run(story())


async def written_by_the_next_two(folder: Path, kind: str, reason: str) -> int:
    """Let two more controllers start, one after the other, and return how many events of that kind are written then."""
    for _ in range(2):
        async with leading(folder) as stage:
            await stage.reported(kind, reason)
    return stage.store.events.counts[kind]


def test_a_gpu_in_quarantine_is_told_by_the_next_controller(tmp_path: Path) -> None:
    async def story() -> None:
        dying = Stage(tmp_path)
        await dying.controller.start()
        dying.store.amendments.failed_devices = (FailedDevice(node="n", uuid="GPU-1", failures=2),)
        await dying.store.commit()
        dying.run.close()
        assert await written_by_the_next_two(tmp_path, "quarantine", "GPU GPU-1 of node n failed 2 times") == 1

    asyncio.run(story())


def test_what_was_settled_is_told_by_the_next_controller(tmp_path: Path) -> None:
    """The first one's event waited for room on its disk."""

    async def story() -> None:
        dying = Stage(tmp_path)
        await dying.store.commit(settled=Settled(micro_batch_size=4, reduction_leaves=8, reason="the fastest"))
        dying.run.close()
        assert await written_by_the_next_two(tmp_path, "numerics", "the fastest") == 1

    asyncio.run(story())
