"""What each worker has in a whole state when a generation is over, and what faults have left of it. Pure."""

from dataclasses import dataclass

from frostline_contract.plan import CHECKPOINT, CONTINUE, FRESH, SURVIVORS
from tests.chaos.kinds import BEFORE_THE_VOTE, ERRORS
from tests.chaos.timeline import Hit, Life


@dataclass(frozen=True)
class Held:
    """Pieces that a worker has in a whole state: surely, and perhaps (where a move or a first vote was under way)."""

    sure: frozenset[int] = frozenset()
    perhaps: frozenset[int] = frozenset()


def held_after(life: Life, following: Life, before: dict[str, Held], hits: tuple[Hit, ...]) -> dict[str, Held]:
    """What each worker holds when `life` is over and `following` answers or follows it.

    Until a generation's first vote has been seen everybody who takes part keeps what it came with; from then on what the plan
    needs. Who takes no part may keep it: nobody asks.
    """
    plan = life.plan
    needs = {worker: frozenset(plan.needs(worker)) for worker in plan.placement.workers}
    if plan.start in (FRESH, CHECKPOINT):
        before = {}
    moved_on = following.plan.start == SURVIVORS and following.plan.start_step > max(plan.start_step, life.first_step - 1)
    if life.recorded or moved_on or following.plan.start == CONTINUE:
        return {worker: Held(pieces, pieces) for worker, pieces in needs.items()}
    in_vote = any(hit.generation == life.name and hit.phase not in BEFORE_THE_VOTE - {"vote"} for hit in hits)
    held = {}
    for worker in {*before, *needs}:
        old, new = before.get(worker, Held()), needs.get(worker, frozenset())
        kept = old.sure if worker in plan.participants or plan.start != SURVIVORS else frozenset[int]()
        held[worker] = Held(kept & new if in_vote else kept, old.perhaps | new)
    return held


def left_after(life: Life, held: dict[str, Held], hits: list[Hit]) -> dict[str, Held]:
    """What of it the faults have left, for this answer and for the next one: nobody has it again before a generation runs."""
    dead = {w for hit in hits if hit.fault.kind not in ERRORS for w in hit.workers if w not in life.plan.participants}
    left = {}
    for worker, pieces in held.items():
        torn = {piece for hit in hits if worker in hit.workers for piece in hit.torn}
        if worker not in dead:
            left[worker] = Held(pieces.sure - torn, pieces.perhaps - torn)
    return left
