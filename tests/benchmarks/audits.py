"""The extra time of an audited step, and the cost of audits at the default interval that follows from it."""

from frostline_contract.job.training import TrainingSection
from tests.benchmarks.measuring import Effort, Report, Row, Spread, milliseconds
from tests.benchmarks.members import call_all, make_plan, slowest, store_ports
from tests.benchmarks.subjects import SUBJECTS, placement_of
from tests.hand_made_plans import buddies_in, with_buddies
from tests.warm_workers import WarmWorkers

TURNS = {"digits": 200, "bert": 16}
SHAPES = ((1, 2), (2, 1))
"""In the first shape another replica's owner audits; in the second the buddy does."""
GOAL_PERCENT = 1.0


def audits(effort: Effort) -> Report:
    """Measure steps with and without an audit, in turns on one model."""
    every = TrainingSection.model_fields["audit_every_steps"].default
    pool, rows = WarmWorkers(), list[Row]()
    try:
        for subject in SUBJECTS:
            for pp_degree, dp_degree in SHAPES:
                placement, workers = placement_of(pp_degree, dp_degree), pp_degree * dp_degree
                buddies, uncovered = buddies_in(placement, tuple(range(workers)))
                plan = make_plan(placement, store_ports(pool, workers))
                plan = with_buddies(plan, buddies, uncovered)
                turns = effort.pairs(TURNS[subject])
                members = call_all(pool, "audit_turns", workers, plan=plan.model_dump(mode="json"), subject=subject, turns=turns)
                sides = {side: slowest(members, side) for side in ("audited", "plain")}
                percent = [100 * (a / b - 1) / every for a, b in zip(sides["audited"], sides["plain"], strict=True)]
                medians = {f"{side} ms": milliseconds(seconds) for side, seconds in sides.items()}
                case = f"{subject}, {pp_degree} x {dp_degree} (pp x dp)"
                rows.append(Row(case, f"of a step, every {every}", "%", Spread.of(percent), medians, at_most=GOAL_PERCENT))
    finally:
        pool.close()
    return Report(
        "Audits",
        f"Two workers; a step in which each computes a micro-batch of the other's again and all compare bits, and one without, "
        f"in turns on one model, {TURNS['digits']} turns of the slowest member's step. What one audit adds is spread over the "
        f"default interval of {every} steps (`training.audit_every_steps`).",
        rows,
    )
