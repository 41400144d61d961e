"""The whole pieces of each worker when a generation is over, and those that faults have left. Pure."""

from dataclasses import dataclass

from frostline_contract.plan import CHECKPOINT, CONTINUE, FRESH, SURVIVORS
from tests.chaos.kinds import AT_A_PLACE, BEFORE_THE_VOTE, ERRORS
from tests.chaos.timeline import Hit, Life


@dataclass(frozen=True)
class Held:
    """Pieces that a worker has in a whole state: surely, and perhaps (where a move or a first vote was under way)."""

    sure: frozenset[int] = frozenset()
    perhaps: frozenset[int] = frozenset()


def held_after(life: Life, following: Life, before: dict[str, Held], hits: tuple[Hit, ...]) -> dict[str, Held]:
    """Return the pieces of each worker when `life` is over and `following` answers or follows it.

    Until a generation's first vote has been seen, every participant keeps the pieces with which it came; from then on those that
    the plan needs. Workers outside the plan may keep theirs: no plan uses them. A vote that has passed may have no record: whom a
    fault hits in a later step has seen it.
    """
    plan = life.plan
    needs = {worker: frozenset(plan.needs(worker)) for worker in plan.placement.workers}
    if plan.start in (FRESH, CHECKPOINT):
        before = {}
    moved_on = following.plan.start == SURVIVORS and following.plan.start_step > max(plan.start_step, life.first_step - 1)
    beyond = any(hit.generation == life.name and hit.fault.kind in AT_A_PLACE and hit.step > life.first_step for hit in hits)
    if life.recorded or moved_on or beyond or following.plan.start == CONTINUE:
        return {worker: Held(pieces, pieces) for worker, pieces in needs.items()}
    in_vote = any(hit.generation == life.name and hit.phase not in BEFORE_THE_VOTE - {"vote"} for hit in hits)
    held = {}
    for worker in {*before, *needs}:
        old, new = before.get(worker, Held()), needs.get(worker, frozenset())
        kept = old.sure if worker in plan.participants or plan.start != SURVIVORS else frozenset[int]()
        held[worker] = Held(kept & new if in_vote else kept, old.perhaps | new)
    return held


def left_after(life: Life, held: dict[str, Held], hits: list[Hit]) -> dict[str, Held]:
    """Return the pieces that the faults have left, for this answer and for the next one: lost pieces return only once a
    generation runs."""
    dead = {w for hit in hits if hit.fault.kind not in ERRORS for w in hit.workers if w not in life.plan.participants}
    left = {}
    for worker, pieces in held.items():
        torn = {piece for hit in hits if worker in hit.workers for piece in hit.torn}
        if worker not in dead:
            left[worker] = Held(pieces.sure - torn, pieces.perhaps - torn)
    return left
