"""Timelines of chaos runs made by hand, for the tests of their oracle."""

from frostline_contract.job.cluster import Fault
from frostline_contract.plan import GenerationId, Placement, Plan
from tests.chaos.oracle import Verdict, judge
from tests.chaos.timeline import Complete, Hit, Life, Timeline

UNITS = 4
VOTED_AT = 100.0
"""When the first step of the answering generation was committed; faults lie before it."""


def life(counter: int, start: str, first_step: int, workers: str, lineage: int = 0, buddies: bool = True, **more) -> Life:
    """A pipeline over `workers`, one letter each, unit i on the i-th (the last has the rest); its buddy is the next one."""
    recorded = more.pop("recorded", (first_step, first_step + 1))
    bounds = (*range(len(workers)), UNITS)
    owner = [min(unit, len(workers) - 1) for unit in range(UNITS)]
    plan = Plan(
        generation=GenerationId(incarnation=1, counter=counter),
        base=GenerationId(incarnation=1, counter=counter - 1) if counter > 1 else None,
        lineage=lineage,
        start=start,
        start_step=-1 if start == "continue" else first_step - 1,
        freeze_point=0,
        placement=Placement(pp_degree=len(workers), dp_degree=1, stage_bounds=bounds, leaf_bounds=(0, 8), workers=tuple(workers)),
        buddies=tuple(workers[(place + 1) % len(workers)] if buddies and len(workers) > 1 else "" for place in owner),
        **more,
    )
    voted = VOTED_AT * (counter - 1) if recorded else None
    return Life(plan, first_step, recorded, voted)


def hit(kind: str, worker: str, step: int, phase: str = "schedule", generation: str = "1.1", **more) -> Hit:
    placed = {} if kind in ("tear", "late_commit", "kill_pod", "kill_node", "cut_node") else {"phase": phase}
    fault = Fault(kind=kind, step=step, worker=0, seconds=more.pop("seconds", 5.0), **placed)
    at = more.pop("at", VOTED_AT - 10)
    return Hit(fault, tuple(worker), step, phase, generation, more.pop("torn", ()), at)


def verdict(*lives: Life, hits: tuple[Hit, ...], **more) -> Verdict:
    return judge(Timeline(UNITS, lives, hits, **more))


FIRST = life(1, "fresh", 1, "abcd")
BARE = life(1, "fresh", 1, "abcd", buddies=False)
BACK = {
    "checkpoints": (Complete(0, 5, 50.0), Complete(0, 10, 60.0)),
    "cuts": ((1, 10),),
    "failures": ((1, "c is gone; back to step 10: units [2] are held by nobody"),),
}
