"""The event of a generation's start, whatever arrives before the members' reports that they are inside."""

import asyncio
from pathlib import Path

from tests.unit.controller.test_service_leavers import JOB
from tests.unit.controller.test_service_sizing import leading


def test_a_start_is_told_where_a_joiners_plan_is_switched_to_before_anybody_was_known_to_be_inside(tmp_path: Path) -> None:
    """Only members that are inside vote, so a switch proves as much as their reports."""

    async def story() -> None:
        async with leading(tmp_path, **JOB) as stage:
            await stage.join(0, 1)
            first = await stage.until(lambda: stage.facts.current, "the first plan")
            await stage.join(2)
            following = await stage.until(lambda: stage.facts.state.prepared, "a plan with the joiner")
            assert stage.store.events.counts["start"] == 0
            await stage.enter(following, following.switch_from)
            await stage.reported("start", "first plan")
            (reported,) = [event for event in stage.store.events.all() if event["kind"] == "start"]
            assert reported["generation"] == str(first.generation)

    asyncio.run(story())
