"""A recovery that goes on from the state in which a generation was left: workers outside the new shape kept it. Pure.

It loses the steps since the switch, and fewer than the newest checkpoint would cost.
"""

from frostline_contract.plan import SURVIVORS
from tests.chaos.timeline import Life, Timeline


def goes_on_from_left_state(timeline: Timeline, before: Life | None, base: Life, life: Life) -> bool:
    """Whether `life` starts where training switched from `before` to `base`, and the workers that left there have all pieces."""
    plan = life.plan
    if before is None or plan.start != SURVIVORS or plan.start_step != base.first_step - 1:
        return False
    leavers = set(base.plan.leavers) & set(plan.participants)
    kept = {piece for worker in leavers for piece in before.plan.needs(worker)}
    return kept == set(range(timeline.num_pieces))


def left_state_complaints(timeline: Timeline, base: Life, life: Life, checkpoints: set[int]) -> list[str]:
    """Check that the lineage is new, that no checkpoint is newer, and that the records say so; return the complaints.

    checkpoints: steps of those that may have been the newest.
    """
    step, lineage = life.first_step - 1, life.plan.lineage
    complaints = []
    if lineage <= base.plan.lineage:
        complaints.append(f"{life.name} goes on from the left step {step} in lineage {lineage}, which is not a new one")
    if step < min(checkpoints):
        complaints.append(f"{life.name} goes on from the left step {step}, and a checkpoint of step {min(checkpoints)} exists")
    if life.recorded and (lineage, step) not in timeline.cuts:
        complaints.append(f"metrics.jsonl has no cut to step {step} for lineage {lineage}")
    return complaints
