"""Runs that stop, or pause, while something else happens: more workers are asked for, checkpoints are gone, all members die."""

import asyncio
from pathlib import Path

import pytest

from frostline_contract.epochs import EPOCHS_FOLDER
from frostline_contract.run_status import RunStatus
from frostline_proto.v1 import control_pb2 as pb
from tests.unit.controller.test_service_sizing import ask, first_plan, leading


@pytest.mark.parametrize("by", ["annotation", "a scale request"])
def test_more_workers_while_a_suspend_is_under_way_are_for_the_next_resume(tmp_path: Path, by: str) -> None:
    async def story() -> None:
        async with leading(tmp_path) as stage:
            await first_plan(stage, 0, 1)
            ask(stage, by, 0)
            await stage.reported("command", f"suspend by {by}")
            ask(stage, by, 2)
            await stage.reported("command", f"{by}: 2 workers, from the next resume on: the run is draining")
            stage.controller.ending.note_outcome(pb.RunOutcome(status="suspended", steps=3))
            stage.end_workers(0, 1)
            await stage.until(lambda: stage.facts.state.state == "suspended" and stage.replicas == 0, "suspended")
            assert stage.facts.state.requested_workers == 2
            assert not any("answered by" in event["reason"] for event in stage.store.events.all())

    asyncio.run(story())


@pytest.mark.parametrize("saved", [True, False])
def test_a_run_that_stops_while_its_checkpoints_are_gone_leaves_their_folder_alone(tmp_path: Path, saved: bool) -> None:
    """A volume is not mounted: a file of ours there would make the next resume begin at step 0."""

    async def story() -> None:
        async with leading(tmp_path) as stage:
            await first_plan(stage, 0, 1)
            if saved:
                await stage.run.outbox.event("checkpoint", "step 8", step=8)
            await stage.controller.ending.drain("suspend by a command")
            stage.controller.ending.note_outcome(pb.RunOutcome(status="suspended", steps=3))
            stage.end_workers(0, 1)
            await stage.until(lambda: stage.facts.state.state == "suspended", "suspended")
            assert (tmp_path / "checkpoints" / EPOCHS_FOLDER).exists() is not saved

    asyncio.run(story())


def test_a_pause_whose_members_have_all_died_goes_on_with_min_workers_only(tmp_path: Path) -> None:
    async def story() -> None:
        sections = {"placement": {"workers": 3, "min_workers": 2}, "controller": {"start_timeout_seconds": 0.2}}
        async with leading(tmp_path, **sections) as stage:
            before = await first_plan(stage, 0, 1)
            await stage.store.commit(state=RunStatus.DRAINING, paused=True, message="too few stay")
            stage.end_workers(0, 1)
            await stage.join(2)
            await stage.until(lambda: "1 of at least 2 are there" in stage.facts.message, "it waits for another one")
            await asyncio.sleep(0.5)
            assert stage.facts.current == before
            await stage.join(3)
            plan = await stage.until(lambda: stage.facts.current != before and stage.facts.current, "it goes on")
            assert stage.ordinals(plan) == [2, 3] and stage.facts.state.state == RunStatus.RUNNING

    asyncio.run(story())
