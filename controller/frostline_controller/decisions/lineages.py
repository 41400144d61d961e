"""Which decisions of other lineages still count, and which changes of the freeze point statistics show.

(decided_in, number) names a decision: in a lineage decision k reads interval k. A rollback is decided in the lineage that it ends
and carries the lineage that it opens, in which intervals and their numbers come again; so numbers rise strictly between two
rollbacks, not across one. In the lineage that it opens a rollback stands where the decision stood that it takes back
(`position`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.plan import Decision
from frostline_contract.statistics import IntervalStatistics


@dataclass(frozen=True)
class Change:
    """A freeze point that took effect: decision `number` moved it from `before` to `after` at `effective_step`."""

    number: int
    effective_step: int
    before: int
    after: int


def position(decision: Decision, calendar: DecisionCalendar) -> int:
    """The number under which a decision stands in its lineage: its own, or for a rollback that of the decision in force
    at the first step that is computed again. A void rollback changed nothing and keeps its number."""
    if decision.kind == "rollback" and not decision.void:
        return calendar.due_before(decision.rollback_to_step + 1)
    return decision.number


def surviving_decisions(decisions: Sequence[Decision], calendar: DecisionCalendar) -> dict[int, Decision]:
    """The decisions that made the surviving lineage what it is, by their position in it, void ones included.

    A rollback to step c drops the decisions of older lineages that took effect after c and stands in the place of the one
    that it took back. Decisions of a lineage that a restore opened replace those of older ones from their first number on.
    Where a decision is recorded again, as void, the newer record counts.
    """
    newest_records = {(decision.decided_in, decision.number): decision for decision in decisions}
    kept: list[Decision] = []
    lineage = 0
    for decision in newest_records.values():
        if decision.kind == "rollback" and not decision.void:
            kept = [
                earlier for earlier in kept if earlier.effective_step <= decision.rollback_to_step or _rolled(earlier, decision)
            ]
            lineage = decision.lineage
        elif decision.kind != "rollback" and decision.lineage > lineage:
            kept = [earlier for earlier in kept if position(earlier, calendar) < decision.number]
            lineage = decision.lineage
        kept.append(decision)
    return {position(decision, calendar): decision for decision in kept}


def _rolled(earlier: Decision, newer: Decision) -> bool:
    """An earlier rollback outlives a newer one that goes back to a step after its own."""
    return earlier.kind == "rollback" and not earlier.void and earlier.rollback_to_step < newer.rollback_to_step


def changes(statistics: Sequence[IntervalStatistics], calendar: DecisionCalendar) -> tuple[Change, ...]:
    """The changes of the freeze point that surviving statistics show, oldest first: what happened, void decisions left out."""
    pairs = pairwise(statistics)
    return tuple(
        Change(later.number - 1, calendar.effective_step(later.number - 1), earlier.freeze_point, later.freeze_point)
        for earlier, later in pairs
        if earlier.freeze_point != later.freeze_point
    )


def last_rollback(decisions: Sequence[Decision], calendar: DecisionCalendar, before: int) -> int:
    """Position of the newest rollback in the surviving lineage that stands before decision `before`; 0 where there is none."""
    kept = surviving_decisions(decisions, calendar)
    places = [place for place, decision in kept.items() if decision.kind == "rollback" and not decision.void]
    return max((place for place in places if place < before), default=0)
