"""The cost of a copy of every unit in another failure domain: a step with buddies against one without, in turns."""

import statistics
from typing import Any

from tests.benchmarks.measuring import Effort, Report, Row, Spread, milliseconds
from tests.benchmarks.members import call_all, make_plan, store_ports
from tests.benchmarks.subjects import SUBJECTS, placement_of
from tests.hand_made_plans import buddies_in, with_buddies
from tests.warm_workers import WarmWorkers

TURNS = {"digits": 300, "bert": 24}
DEPTH = 4
DIGITS_GOAL_PERCENT = 2.0


def keeping(effort: Effort) -> Report:
    """Measure the share of a step that replication takes, and the gradients sent in the step."""
    pool, rows = WarmWorkers(), []
    try:
        for subject in SUBJECTS:
            placement = placement_of(DEPTH, 1)
            buddies, uncovered = buddies_in(placement, tuple(range(DEPTH)))
            plan = with_buddies(make_plan(placement, store_ports(pool, DEPTH)), buddies, uncovered)
            turns = effort.pairs(TURNS[subject])
            members = call_all(pool, "keeping_turns", DEPTH, plan=plan.model_dump(mode="json"), subject=subject, turns=turns)
            rows += _rows(subject, members)
    finally:
        pool.close()
    return Report(
        "Buddy copies",
        f"Four stages on four workers in four failure domains: each worker keeps its neighbour's units, gets their reduced "
        f"gradients before the vote and updates them as their owner does. A step with buddies and one without in turns on one "
        f"model, {TURNS['digits']} turns. `wall`: the slowest member's step; `processor`: the processor time of all members "
        "together, which other programs disturb less, and which is what matters where members share cores.",
        rows,
    )


def _rows(subject: str, members: list[dict[str, Any]]) -> list[Row]:
    wall = {side: [max(turn) for turn in _turns(members, side, "seconds")] for side in ("with", "without")}
    processor = {side: [sum(turn) for turn in _turns(members, side, "processor")] for side in ("with", "without")}
    goal = DIGITS_GOAL_PERCENT if subject == "digits" else None
    rows = []
    for name, sides in (("wall", wall), ("processor", processor)):
        percent = [100 * (a / b - 1) for a, b in zip(sides["with"], sides["without"], strict=True)]
        medians = {f"{side} ms": milliseconds(seconds) for side, seconds in sides.items()}
        note = _update_note(members) if name == "processor" else ""
        rows.append(
            Row(f"{subject}, 4 stages, {name}", "with over without", "%", Spread.of(percent), medians, at_most=goal, note=note)
        )
    return rows


def _turns(members: list[dict[str, Any]], side: str, what: str) -> list[tuple[float, ...]]:
    """Return the members' figures of each turn."""
    return list(zip(*(member[side][what] for member in members), strict=True))


def _update_note(members: list[dict[str, Any]]) -> str:
    updates = [1e3 * statistics.median(part.get("update", 0.0) for part in member["with"]["parts"]) for member in members]
    return "update of the unit replicas, ms a member: " + ", ".join(f"{update:.2f}" for update in updates)
