"""What the planner learns about the cache in use: the boundary that it holds, so that its fills count as paid for there."""

import asyncio
from pathlib import Path

import pytest

from frostline_controller.planner.adapter import Choice, Situation
from frostline_controller.planner.choice import PlanChoice
from tests.unit.controller.test_service_sizing import cost_job, first_plan, leading


@pytest.mark.parametrize(("use_cache", "known"), [(True, 3), (False, 0)])
def test_the_planner_knows_the_boundary_that_a_cache_in_use_holds_after_a_failure_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_cache: bool, known: int
) -> None:
    async def story() -> None:
        job = cost_job(workers=2, initial_pp_degree=1, objective="throughput")
        job["freeze"]["initial_units"] = 3
        async with leading(tmp_path, **job) as stage:
            plan = await first_plan(stage, 0, 1)
            placement = plan.placement.model_copy(update={"use_cache": use_cache})
            await stage.store.commit(current=plan.model_copy(update={"placement": placement}))
            seen: list[Situation] = []

            async def ask(_: PlanChoice, situation: Situation) -> Choice:
                seen.append(situation)
                return Choice(placement, False, "")

            monkeypatch.setattr(PlanChoice, "_ask", ask)
            workers = list(stage.facts.members)
            for current in (placement, None):
                await stage.controller.choosing.choose(workers, 3, current, 5)
            assert [situation.cached_point for situation in seen[-2:]] == [known, known]

    asyncio.run(story())
