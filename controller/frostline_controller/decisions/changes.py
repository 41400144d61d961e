"""Changes of the freeze point: those that statistics show, and the last one that was taken back."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.plan import Decision
from frostline_contract.statistics import IntervalStatistics
from frostline_controller.decisions.surviving import timeline


@dataclass(frozen=True)
class Change:
    """A freeze point that took effect: decision `number` moved it from `before` to `after` at `effective_step`."""

    number: int
    effective_step: int
    before: int
    after: int


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
    kept = timeline(decisions, calendar)
    places = [place for place, decision in kept.items() if decision.kind == "rollback" and not decision.void]
    return max((place for place in places if place < before), default=0)
