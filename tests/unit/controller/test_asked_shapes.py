"""A shape that a command or the job's schedule asks for is made, though its plan was dropped or its controller died; or an event
says why it is not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from frostline_contract.plan import Plan
from frostline_controller.decisions.rails import RAIL_NAMES
from frostline_controller.planner.adapter import Choice
from frostline_controller.recovery.plans import StartingPlans
from frostline_controller.run.pinned import PinnedShape
from frostline_proto.v1 import control_pb2 as pb
from tests.unit.controller.test_service_sizing import Stage, first_plan, freeze_to, leading

TWO_STAGES, THREE_STAGES = {"dp": 1, "pp": 2}, {"dp": 1, "pp": 3}
AT_6 = {"step": 6, "pp_degree": 2, "dp_degree": 1}
COMMANDED = "reshape by command: pp 2 x dp 1"


def job(*reshapes: dict[str, int], **controller: float) -> dict[str, Any]:
    """Two replicas, and the reshapes that the job schedules."""
    return {
        "placement": {"workers": 3, "min_workers": 1, "pp_degree": 1, "dp_degree": 2},
        "controller": {"start_timeout_seconds": 0.2, "join_settle_seconds": 0.0, "join_pause_seconds": 0.1, **controller},
        "freeze": {"interval_steps": 8, "policy": {"name": "manual"}, "rails": {"off": list(RAIL_NAMES)}},
        "reshapes": list(reshapes),
    }


async def prepared(stage: Stage, degrees: dict[str, int], after: Plan | None = None) -> Plan:
    """Wait for a prepared plan of a shape; with `after`, for another than that."""

    def found() -> Plan | None:
        plan = stage.facts.state.prepared
        return plan if plan is not None and plan.placement.degrees == degrees and plan != after else None

    return await stage.until(found, f"a plan of {degrees}")


async def command(stage: Stage, pp_degree: int) -> None:
    accepted = asyncio.create_task(
        stage.controller.commands.accept(pb.CommandRequest(kind="reshape", pp_degree=pp_degree, dp_degree=1))
    )
    await stage.until(accepted.done, "the command is durable")
    await accepted


def not_made(stage: Stage) -> list[str]:
    return [line["reason"] for line in stage.store.events.all() if "not made" in line["reason"]]


def test_a_scheduled_reshape_whose_plan_was_dropped_is_made_again_before_the_next_one(tmp_path: Path) -> None:
    async def story() -> None:
        later = {"step": 8, "pp_degree": 1, "dp_degree": 2}
        async with leading(tmp_path, **job(AT_6, later)) as stage:
            await first_plan(stage, 0, 1)
            dropped = await prepared(stage, TWO_STAGES)
            await stage.controller.reshaping.drop("in this test")
            again = await prepared(stage, TWO_STAGES, after=dropped)
            await stage.enter(again, 6)
            assert again.switch_from == 6
            assert "step 6" not in stage.facts.state.pinned.open_request, "answered; the next one may be open already"
            await prepared(stage, {"dp": 2, "pp": 1})
            assert not_made(stage) == []

    asyncio.run(story())


def test_a_command_outlives_the_controller_that_has_not_planned_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **job()) as stage:
            plan = await first_plan(stage, 0, 1)
            pinned = PinnedShape(degrees=TWO_STAGES, open_request=COMMANDED)
        dying = Stage(tmp_path, **job())
        await dying.store.commit(pinned=pinned)
        dying.run.close()
        async with leading(tmp_path, **job()) as stage:
            await stage.join(0, 1)
            await stage.enter(plan, 2)
            assert COMMANDED in (await prepared(stage, TWO_STAGES)).reason

    asyncio.run(story())


def test_a_shape_that_a_recovery_has_brought_is_asked_for_no_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **job()) as stage:
            await first_plan(stage, 0, 1)
            await command(stage, 2)
            await prepared(stage, TWO_STAGES)
            starting: StartingPlans = stage.controller.starting
            plan = await starting.from_checkpoint(stage.facts.available(), "a failure")
            assert (plan.placement.degrees, stage.facts.state.pinned.open_request) == (TWO_STAGES, "")

    asyncio.run(story())


def test_a_shape_that_needs_more_workers_is_told_once_and_made_when_they_are_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **job({"step": 6, "pp_degree": 3, "dp_degree": 1})) as stage:
            await first_plan(stage, 0, 1)
            await stage.reported("command", "reshape to pp 3 x dp 1 scheduled at step 6: not made, 2 of 3 workers are there")
            await stage.join(2)
            await prepared(stage, THREE_STAGES)
            assert len(not_made(stage)) == 1

    asyncio.run(story())


def test_a_shape_of_another_freeze_point_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **job(reshape_deadline_seconds=0.3)) as stage:
            await first_plan(stage, 0, 1)
            await command(stage, 2)
            plan = await prepared(stage, TWO_STAGES)
            await freeze_to(stage, 5)
            await stage.reported("command", f"{COMMANDED}: not made, it was asked for at freeze point 0, and that is 5 now")
            assert stage.facts.state.prepared != plan

    asyncio.run(story())


def test_a_command_holds_at_the_freeze_point_of_the_newest_decision(tmp_path: Path) -> None:
    """The decision is made, and its step has not come: the plan for the command is one for behind it."""

    async def story() -> None:
        async with leading(tmp_path, **job()) as stage:
            await first_plan(stage, 0, 1)
            await freeze_to(stage, 2)
            for worker in stage.facts.members:
                worker.step = 8
            await command(stage, 2)
            plan = await prepared(stage, TWO_STAGES)
            assert plan.freeze_point == 2

    asyncio.run(story())


@pytest.mark.parametrize(
    ("degrees", "freeze_point", "made"),
    [
        pytest.param({"dp": 2, "pp": 1}, 0, False, id="it is there, and another plan in it does not pay"),
        pytest.param(TWO_STAGES, 2, False, id="it was asked for at another freeze point"),
        pytest.param(TWO_STAGES, 0, True, id="it was lost"),
    ],
)
def test_an_answered_request_brings_its_shape_back_and_nothing_else(
    degrees: dict[str, int], freeze_point: int, made: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that does not pay is made only where the shape is there no more, at the freeze point of its request."""

    async def story() -> None:
        async with leading(tmp_path, **job()) as stage:
            current = (await first_plan(stage, 0, 1)).placement
            choosing = stage.controller.choosing
            await stage.store.commit(pinned=PinnedShape(degrees=degrees))
            found = (await choosing.choose(stage.facts.available(), 0, None, 1)).placement
            if found.degrees == current.degrees:
                found = found.model_copy(update={"workers": found.workers[::-1]})
            await stage.store.commit(pinned=PinnedShape(degrees=degrees, freeze_point=freeze_point))

            async def choose(*asked: Any) -> Choice:
                return Choice(found, False, "in this test")

            monkeypatch.setattr(choosing, "choose", choose)
            stage.controller.adapting.ask("the machine has changed")
            await stage.until(lambda: not stage.controller.adapting.wish, "an answer")
            assert (stage.facts.state.prepared is not None) == made

    asyncio.run(story())


@pytest.mark.parametrize("by", ["too few units to train", "too little memory"])
def test_a_shape_that_no_plan_can_have_is_told_and_hinders_no_other(tmp_path: Path, by: str) -> None:
    async def story() -> None:
        async with leading(tmp_path, **job()) as stage:
            await first_plan(stage, 0, 1, 2)
            await freeze_to(stage, 4)
            if by == "too little memory":
                stage.store.amendments.memory_limit_bytes = 1
            await stage.store.commit(pinned=PinnedShape(degrees=THREE_STAGES, freeze_point=4, open_request="a shape"))
            reason = await stage.reported("command", "a shape: not made, ")
            assert ("memory" in reason) == (by == "too little memory")
            await stage.until(lambda: stage.facts.state.pinned is None, "the shape is pinned no more")

    asyncio.run(story())


def test_an_overtaken_request_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **job()) as stage:
            await first_plan(stage, 0, 1, 2)
            await command(stage, 2)
            await command(stage, 3)
            overtaken = "overtaken by reshape by command: pp 3 x dp 1"
            await stage.reported("command", f"{COMMANDED}: not made, {overtaken}")
            await command(stage, 3)
            assert len(not_made(stage)) == 1, "the same request again overtakes nothing"

    asyncio.run(story())


def test_a_completed_run_tells_what_was_not_made(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **job({**AT_6, "step": 62}, {**AT_6, "step": 100})) as stage:
            await first_plan(stage, 0, 1)
            await command(stage, 2)
            stage.controller.ending.note_outcome(pb.RunOutcome(status="completed", steps=64))
            await stage.until(lambda: stage.facts.ended, "the run's end")
            assert [text.removesuffix(": not made, the run has completed") for text in not_made(stage)] == [
                COMMANDED, "reshape to pp 2 x dp 1 scheduled at step 62", "reshape to pp 2 x dp 1 scheduled at step 100",
            ]  # fmt: skip

    asyncio.run(story())
