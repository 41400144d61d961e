"""A command for a freeze point is refused where no decision could carry it out, and an event says where one did not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from frostline_contract.statistics import IntervalStatistics
from frostline_controller.decisions.by_command import asked_again
from frostline_controller.decisions.rails import RAIL_NAMES, cap_of
from frostline_controller.decisions.registry import OPERATOR
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.convert import to_record
from frostline_rpc.errors import InvalidRequest, Refused
from tests.integration.scripted_worker import statistics
from tests.unit.controller.freezing_run import decision, entry, inputs_of
from tests.unit.controller.test_service_sizing import Stage, first_plan, freeze_to, leading

NO_RAILS = {"freeze": {"rails": {"off": list(RAIL_NAMES)}}}
ADAPTED = {"model": {"adapters": {"rank": 4, "blocks": [2, 3]}}, **NO_RAILS}
"""Six units; the first with adapters is unit 3."""


async def answer(stage: Stage, kind: str, **fields: Any) -> str:
    accepted = asyncio.create_task(stage.controller.commands.accept(pb.CommandRequest(kind=kind, **fields)))
    await stage.until(accepted.done, "the command is durable or refused")
    return await accepted


@pytest.mark.parametrize(
    ("sections", "command", "words"),
    [
        ({"elastic": {"freeze": False}}, ("freeze", 2), "freeze: elastic.freeze is false"),
        ({"elastic": {"freeze": False}}, ("unfreeze", 0), "unfreeze: elastic.freeze is false"),
        ({"training": {"steps": 10}}, ("freeze", 2), "decision 1, the next one, would take effect at step 11, and the run ends"),
        ({"training": {"steps": 10}}, ("unfreeze", 0), "unfreeze: decision 1, the next one, would take effect at step 11"),
        ({}, ("freeze", 5), "freeze_point is 5; it must be 0 to 3 (units before it freeze; the rail cap_total: at most 2 of 4"),
        ({"freeze": {"rails": {"total_fraction": 1.0, "last_blocks": 1}}}, ("freeze", 5),
         "freeze_point is 5; it must be 0 to 4 (units before it freeze; the rail last_blocks: the last 1 of 4 blocks never"),
        (NO_RAILS, ("freeze", 6), "freeze_point is 6; it must be 0 to 5 (units before it freeze)"),
        (ADAPTED, ("freeze", 1), "freeze_point is 1; it must be 3 to 5 (units before it freeze; unit 3 is the first one with"),
    ],
)  # fmt: skip
def test_what_no_decision_could_do_is_refused(
    tmp_path: Path, sections: dict[str, Any], command: tuple[str, int], words: str
) -> None:
    async def story() -> None:
        async with leading(tmp_path, **sections) as stage:
            await first_plan(stage, 0, 1)
            with pytest.raises((InvalidRequest, Refused)) as refused:
                await answer(stage, command[0], freeze_point=command[1])
            assert words in str(refused.value)
            assert stage.facts.state.forced_freeze_point == -1

    asyncio.run(story())


def test_an_unfreeze_says_and_asks_for_what_adapters_leave_to_learn(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **ADAPTED) as stage:
            await first_plan(stage, 0, 1)
            said = await answer(stage, "unfreeze")
            assert said == "units from 3 on, the first with adapters, learn again from the next decision on"
            assert stage.facts.state.forced_freeze_point == 3

    asyncio.run(story())


def test_a_request_that_its_decision_could_not_carry_out_is_answered_by_an_event(tmp_path: Path) -> None:
    """An interval without an accepted step changes nothing, whoever asks."""

    async def story() -> None:
        async with leading(tmp_path) as stage:
            await first_plan(stage, 0, 1)
            await answer(stage, "freeze", freeze_point=3)
            unusable = to_record(statistics(1), IntervalStatistics).model_copy(update={"accepted_steps": 0})
            await stage.store.statistics.take([unusable])
            said = await stage.reported("command", "freeze point 3 by command: not made, ")
            assert "nan: interval 1 has no accepted step" in said
            assert (stage.facts.state.forced_freeze_point, stage.facts.state.decisions[0].freeze_point) == (-1, 0)

    asyncio.run(story())


@pytest.mark.parametrize("lost", ["void", "restored"])
def test_a_request_whose_decision_is_lost_is_carried_out_by_the_next_one(lost: str, tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **NO_RAILS) as stage:
            await first_plan(stage, 0, 1)
            await freeze_to(stage, 3)
            if lost == "void":
                void = pb.RunEvent(kind="decision_void", step=10, reason="did not come in time", detail={"number": "1"})
                await stage.controller.take_worker_event(void)
            else:
                (tmp_path / "checkpoints" / "epochs").mkdir(parents=True)  # from step 0
                await stage.controller.starting.from_checkpoint(stage.facts.available(), "a failure")
            await stage.until(lambda: stage.facts.state.forced_freeze_point == 3, "it is open again")
            number = 2 if lost == "void" else 1
            lineage = stage.facts.state.lineage
            read = to_record(statistics(number), IntervalStatistics).model_copy(update={"lineage": lineage})
            await stage.store.statistics.take([read])
            made = await stage.until(lambda: stage.facts.state.decisions[1:], "the next decision")
            assert [(one.number, one.freeze_point, one.policy, one.void) for one in made] == [(number, 3, "operator", False)]
            assert stage.facts.state.forced_freeze_point == -1

    asyncio.run(story())


def test_a_newer_command_or_a_rollback_stays_in_force() -> None:
    lost, policy = decision(2, 4, "freeze").model_copy(update={"policy": "operator"}), decision(3, 2, "freeze")
    newer = policy.model_copy(update={"policy": "operator"})
    assert asked_again(-1, [lost], [policy]) == 4
    assert asked_again(0, [lost], [policy]) == 0, "a newer request is open"
    assert asked_again(-1, [lost], [newer]) == -1, "a newer request is decided"
    assert asked_again(-1, [lost, newer], []) == 2
    assert asked_again(-1, [policy, lost.model_copy(update={"void": True})], []) == -1


def test_a_request_that_is_open_when_the_run_completes_is_answered_by_an_event(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path) as stage:
            await first_plan(stage, 0, 1)
            await answer(stage, "freeze", freeze_point=3)
            stage.controller.ending.note_outcome(pb.RunOutcome(status="completed", steps=64))
            said = await stage.reported("command", "not made")
            assert said == "freeze point 3 by command: not made, the run has completed"

    asyncio.run(story())


@pytest.mark.parametrize(("boundary", "deepest"), [(5, 4), (4, 3), (3, 2), (2, 1), (1, 0)])
def test_the_deepest_point_of_a_command_ends_before_what_the_guard_has_rolled_back(boundary: int, deepest: int) -> None:
    rails = inputs_of(
        entry(1, [1.0] * 6), only=("cap_total", "last_blocks", "quarantine", "guard"), rails={"total_fraction": 0.9}
    ).freeze.rails
    undone = decision(1, boundary, "freeze")
    rollback = decision(2, 0, "rollback", lineage=1, rollback_to_step=undone.effective_step - 1)
    assert cap_of(rails, 8, OPERATOR, (undone,)) == (5, "last_blocks: the last 2 of 6 blocks never freeze")
    found = cap_of(rails, 8, OPERATOR, (undone, rollback))
    assert found == (deepest, f"quarantine: freeze point {boundary} was rolled back, nothing from there on freezes again")
