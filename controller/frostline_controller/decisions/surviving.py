"""Decisions and statistics that still count after rollbacks and restores, and the changes of the freeze point that they show.

The rules are those of docs/protocols.md 4.7 and 6.5. All functions are pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.lineage import RESTORE, ROLLBACK, Cuts, LineageStart
from frostline_contract.plan import Decision
from frostline_contract.statistics import IntervalStatistics


@dataclass(frozen=True)
class History:
    """The decisions and lineages under which a plan starts."""

    decisions: tuple[Decision, ...]
    lineages: tuple[LineageStart, ...]

    def without_unstarted(self, reached: int, started: int) -> Self:
        """The history without lineages of plans that never ran: restores above `reached` and above `started`.

        Args:
            reached: the lineage of the survivors' state.
            started: the newest recorded lineage.
        """
        newest = max(reached, started)
        return replace(self, lineages=tuple(s for s in self.lineages if s.kind != RESTORE or s.lineage <= newest))

    def until(self, lineage: int) -> Self:
        """The history up to `lineage`, without decisions and starts of later lineages."""
        kept = tuple(start for start in self.lineages if start.lineage <= lineage)
        return replace(self, decisions=tuple(d for d in self.decisions if d.lineage <= lineage), lineages=kept)


def surviving_statistics(
    statistics: Iterable[IntervalStatistics], lineages: tuple[LineageStart, ...]
) -> list[IntervalStatistics]:
    """Statistics of steps that were not undone, one an interval, in order.

    An interval may be reported in two lineages: a restore kept it, and it was sent again before it was acknowledged. Both reports
    are equal.
    """
    cuts = Cuts(lineages)
    kept = {one.number: one for one in sorted(statistics, key=_lineage) if cuts.survives(one.lineage, one.last_step)}
    return [kept[number] for number in sorted(kept)]


def surviving_decisions(
    decisions: Iterable[Decision], lineages: tuple[LineageStart, ...], calendar: DecisionCalendar
) -> list[Decision]:
    """The decisions that are valid in the newest lineage, oldest first, numbered by their place.

    A restore to step c keeps all decisions from statistics up to c, pending or in force, since the same steps would lead to the
    same decisions. A rollback to step c keeps the decisions in force at c and takes the place of the decision that it undoes: it
    appears with that decision's number, in force from step c + 1. A rollback that came too late is void: it opened no lineage and
    keeps its own place, so that its interval is not decided a second time.
    """

    cuts = Cuts(lineages)

    def needs(decision: Decision, start: LineageStart) -> int:
        """The step that a later lineage must have kept for the decision to be valid in it."""
        if start.kind == ROLLBACK:
            return decision.effective_step
        if decision.kind != "rollback":
            return calendar.last_step_of(decision.interval)
        # A rollback needs the step that it returned to: a restore to that step or a later one keeps it. A void rollback was given
        # up by the vote before its effective step, and needs that vote's step.
        return decision.effective_step - 1 if decision.void else decision.rollback_to_step

    def survives(decision: Decision) -> bool:
        own = decision.decided_in if decision.kind == "rollback" and decision.void else decision.lineage
        return cuts.survives_where(own, lambda start: needs(decision, start))

    def placed(decision: Decision) -> Decision:
        if decision.kind != "rollback" or decision.void:
            return decision
        first = decision.rollback_to_step + 1
        return decision.model_copy(update={"number": calendar.due_before(first), "effective_step": first})

    return sorted(
        (placed(decision) for decision in decisions if survives(placed(decision))), key=lambda decision: decision.effective_step
    )


def key_of(decision: Decision) -> tuple[int, int]:
    """The identity of a decision: (decided_in, number), since a lineage decides each interval once."""
    return decision.decided_in, decision.number


def timeline(decisions: Iterable[Decision], calendar: DecisionCalendar) -> dict[int, Decision]:
    """The surviving decisions by number, void ones included, from a record of decisions alone, without lineages' starts.

    Used for a policy's inputs and for another run's plans.jsonl. Where a decision is recorded a second time, as void, the newer
    record counts.
    """
    newest = {key_of(decision): decision for decision in decisions}
    starts = _starts_shown_by(newest.values(), calendar)
    return {decision.number: decision for decision in surviving_decisions(newest.values(), starts, calendar)}


def _starts_shown_by(decisions: Iterable[Decision], calendar: DecisionCalendar) -> tuple[LineageStart, ...]:
    """The lineages' starts that can be inferred from decisions.

    A rollback opens a lineage; any other lineage with decisions was opened by a restore. The restored step is not known exactly.
    It is before the lineage's first decision and no earlier than the effective step of the decision before that one, and no
    surviving decision needs a later step.
    """
    starts: dict[int, LineageStart] = {}
    for decision in decisions:
        if decision.kind == "rollback" and not decision.void:
            starts[decision.lineage] = LineageStart(
                lineage=decision.lineage, starts_at_step=decision.rollback_to_step, kind=ROLLBACK
            )
        elif decision.kind != "rollback" and decision.lineage not in starts:
            step = calendar.effective_step(decision.number - 1) - 1 if decision.number > 1 else 0
            starts[decision.lineage] = LineageStart(lineage=decision.lineage, starts_at_step=step, kind=RESTORE)
    return tuple(starts.values())


def due_in(lineage: int, surviving: Iterable[Decision], step: int) -> list[Decision]:
    """The surviving decisions of older lineages that are still due in `lineage` after `step`, renamed to that lineage.

    They are renamed because workers, whenever they join, look for decisions of the lineage that they compute. Decisions that a
    rollback has undone are not due again.
    """
    return [
        decision.model_copy(update={"decided_in": lineage})
        for decision in surviving
        if decision.kind != "rollback" and decision.decided_in < lineage and decision.effective_step > step
    ]


def without_pending_rollbacks(
    decisions: tuple[Decision, ...], lineages: tuple[LineageStart, ...], reached: int, step: int
) -> tuple[tuple[Decision, ...], tuple[LineageStart, ...]]:
    """Remove the rollbacks that have not happened yet in a state of lineage `reached` at `step`.

    The intervals of removed rollbacks are decided again. If the state is past the step at which a rollback was due, the workers
    had given it up: that rollback stays, as void. Returns decisions and lineages.
    """
    pending = [d for d in decisions if d.kind == "rollback" and not d.void and d.lineage > reached]
    void = {d.lineage: d.model_copy(update={"void": True}) for d in pending}
    given_up = {d.lineage for d in pending if d.effective_step <= step}
    after = tuple(
        void.get(d.lineage, d) if d.kind == "rollback" else d
        for d in decisions
        if d.kind != "rollback" or d.lineage not in void or d.lineage in given_up
    )
    return after, tuple(start for start in lineages if start.kind != ROLLBACK or start.lineage not in void)


def remembered_decisions(
    decisions: Iterable[Decision], lineages: tuple[LineageStart, ...], calendar: DecisionCalendar
) -> tuple[Decision, ...]:
    """The decisions among a policy's inputs: all but those that a restore has undone. Rollbacks and the decisions that they undid
    stay, since quarantine is permanent."""
    restores = Cuts(lineages).restores()
    return tuple(
        decision
        for decision in decisions
        if decision.kind == "rollback" or restores.survives(decision.lineage, calendar.last_step_of(decision.interval))
    )


def in_force(surviving: Iterable[Decision], step: int) -> Decision | None:
    """The newest decision under which `step` is computed, or None before the first."""
    found = [decision for decision in surviving if decision.effective_step <= step and not decision.void]
    return found[-1] if found else None


def next_number(surviving: Iterable[Decision]) -> int:
    """The interval whose decision comes next."""
    return max((decision.number for decision in surviving), default=0) + 1


def _lineage(one: IntervalStatistics) -> int:
    return one.lineage


@dataclass(frozen=True)
class Change:
    """A freeze point that took effect: decision `number` moved it from `before` to `after` at `effective_step`."""

    number: int
    effective_step: int
    before: int
    after: int


def changes(statistics: Sequence[IntervalStatistics], calendar: DecisionCalendar) -> tuple[Change, ...]:
    """The changes of the freeze point that surviving statistics show, oldest first; void decisions caused none."""
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
