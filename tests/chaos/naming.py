"""Whether the events of a run name the workers whose bits were changed. Pure: reads a timeline."""

from frostline_contract.plan import Plan
from tests.chaos.timeline import Hit, Life, Timeline

COPIES_TO_NAME = 3
"""Of so many copies the odd one is known; of two, only that they differ."""


def named_as_flipped(timeline: Timeline, base: Life, life: Life) -> list[str]:
    """Check that the answer `life` to wrong bits is told once, and names the workers that they hit; return the complaints.

    The worker alone is to be named where an audit was certain, or where enough copies existed. Of two copies, or two computations
    that contradict each other for ever, the worker is one of those that are named. A wrong cached value names nobody.
    """
    reported = [detail for lineage, detail in timeline.wrong_bits if lineage == life.plan.lineage]
    if len(reported) != 1:
        return [f"{len(reported)} events tell of the wrong bits that {life.name} answers"]
    (detail,) = reported
    flips = [hit for hit in timeline.hits if hit.fault.kind == "flip" and hit.fault.what != "cached_value"]
    here = [hit for hit in flips if hit.generation == base.name]
    flipped = {worker for hit in flips for worker in hit.workers}
    named, holders = set(detail["workers"]), {one["worker"] for one in detail.get("holders", ())}
    what = f"{life.name} answers bits that changed at {sorted(flipped)}, and its event names {sorted(named)}"
    if detail.get("certain") == "yes" or any(copies_of(base.plan, hit) >= COPIES_TO_NAME for hit in here):
        return [] if named and named <= flipped else [what]
    if here and not any(set(hit.workers) <= named | holders for hit in here):
        return [f"{what}, one of {sorted(holders)}"]
    return []


def copies_of(plan: Plan, hit: Hit) -> int:
    """Return how many members hold the piece that a flip of weights or moments hit; 0 for a flip of a computation."""
    owned = [piece for worker in hit.workers for piece in plan.pieces_of(worker)]
    if hit.fault.what not in ("weight", "moment") or not owned:
        return 0
    return len(plan.needed_by(owned[-1]))
