"""What people ask for by annotation and by command is carried out as it was meant, or refused with the reason."""

import asyncio
from pathlib import Path

import pytest

from frostline_contract.annotations import COMMAND
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.errors import InvalidRequest
from tests.unit.controller.test_freezing_by_command import answer
from tests.unit.controller.test_service_sizing import Stage, ask, first_plan, leading


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("freeze", "'freeze': freeze takes one number, at most 65536; write 'freeze 3'"),
        ("freeze three", "'freeze three': freeze takes one number"),
        ("freeze 3 4", "'freeze 3 4': freeze takes one number"),
        ("freeze -1", "'freeze -1': freeze takes one number"),
        ("resize", "'resize': resize takes one number"),
        ("resize 99999999999", "'resize 99999999999': resize takes one number, at most 65536"),
        ("unfreeze 2", "'unfreeze 2': unfreeze takes no number here; write 'unfreeze'"),
        ("suspend now", "'suspend now': suspend takes no number here"),
        ("dance 2", "kind is 'dance'; known are freeze, unfreeze"),
        ("  ", "kind is ''; known are"),
    ],
)
def test_a_command_annotation_with_too_little_or_too_much_is_refused_and_changes_nothing(
    tmp_path: Path, text: str, words: str
) -> None:
    async def story() -> None:
        async with leading(tmp_path) as stage:
            await first_plan(stage, 0, 1)
            stage.backend.patch_annotations({COMMAND: text}, {})
            await stage.reported("command", f"refused: {words}")
            await stage.until(lambda: COMMAND not in stage.backend.read().annotations, "it is removed")
            state = stage.facts.state
            assert (state.forced_freeze_point, state.requested_workers, state.state) == (-1, -1, "running")

    asyncio.run(story())


def test_a_command_annotation_with_its_number_is_carried_out(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path) as stage:
            await first_plan(stage, 0, 1)
            for text, words in ((" freeze  2 ", "freeze by command: freeze point 2"), ("resize 1", "1 workers, answered by 1")):
                stage.backend.patch_annotations({COMMAND: text}, {})
                await stage.reported("command", words)
            assert (stage.facts.state.forced_freeze_point, stage.facts.state.requested_workers) == (2, 1)

    asyncio.run(story())


def test_a_resize_is_answered_by_the_number_that_it_brings_into_force(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 4, "min_workers": 2}) as stage:
            assert await answer(stage, "resize", workers=9) == "at most 4 workers (placement.workers is 4)"
            assert await stage.reported("command", "9 workers, answered by 4")
            assert await answer(stage, "resize", workers=3) == "at most 3 workers"
            for workers, words in (
                (1, "placement.min_workers, which is 2"),
                (65537, "it must be at most 65536"),
                (0, "at least 1"),
            ):
                with pytest.raises(InvalidRequest) as refused:
                    await answer(stage, "resize", workers=workers)
                assert f"workers is {workers}" in str(refused.value) and words in str(refused.value)
            assert stage.facts.state.requested_workers == 3

    asyncio.run(story())


@pytest.mark.parametrize(("limit", "wanted"), [(0, 2), (-1, 8), (3, 3)])
def test_a_resume_says_where_the_limit_of_an_earlier_resize_holds_and_lifts_it_where_asked_to(
    tmp_path: Path, limit: int, wanted: int
) -> None:
    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 4}) as stage:
            await answer(stage, "resize", workers=2)
            await answer(stage, "suspend")
        resumed = Stage(tmp_path, placement={"workers": 8})
        await resumed.controller.start()
        await resumed.controller.commands.resume("resumed", limit)
        assert (resumed.controller.choosing.wanted_workers(), resumed.replicas) == (wanted, wanted)
        said = [event["reason"] for event in resumed.store.events.all() if "an earlier request still holds" in event["reason"]]
        assert [text.partition(":")[0] for text in said] == (["at most 2 workers, not placement.workers 8"] if limit == 0 else [])
        resumed.run.close()

    asyncio.run(story())


@pytest.mark.parametrize("status", ["suspended", "completed"])
def test_a_limit_for_a_run_that_has_stopped_is_kept_for_its_resume_and_answered(tmp_path: Path, status: str) -> None:
    async def story() -> None:
        async with leading(tmp_path) as stage:
            await first_plan(stage, 0, 1)
            if status == "suspended":
                await answer(stage, "suspend")
            stage.controller.ending.note_outcome(pb.RunOutcome(status=status, steps=3))
            stage.end_workers(0, 1)
            await stage.until(lambda: stage.facts.state.state == status and stage.replicas == 0, "its end")
            ask(stage, "annotation", 1)
            await stage.reported("command", f"annotation: 1 workers, from the next resume on: the run is {status}")
            ask(stage, "annotation", 0)
            await stage.reported("command", f"annotation: 0 workers, nothing to do: the run is {status}")
            assert (stage.facts.state.requested_workers, stage.facts.state.state) == (0, status)

    asyncio.run(story())
