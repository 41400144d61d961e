"""The surviving lineage: which decisions and statistics still count after rollbacks and restores (PROTOCOLS 4, 6). Pure."""

from collections.abc import Iterable

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.plan import Decision
from frostline_contract.statistics import IntervalStatistics
from frostline_controller.state.durable import LineageStart


def surviving_statistics(
    statistics: Iterable[IntervalStatistics], lineages: tuple[LineageStart, ...]
) -> list[IntervalStatistics]:
    """Statistics of steps that were not undone, by interval: of an older lineage, those up to where each later one starts."""
    kept = [
        one
        for one in statistics
        if all(one.last_step <= start.starts_at_step for start in lineages if start.lineage > one.lineage)
    ]
    return sorted(kept, key=lambda one: (one.number, one.lineage))


def surviving_decisions(
    decisions: Iterable[Decision], lineages: tuple[LineageStart, ...], calendar: DecisionCalendar
) -> list[Decision]:
    """The timeline of the newest lineage, oldest first: decisions that bind in it, numbered by their place.

    A restore to step c keeps what was decided from statistics up to c, pending or in force: the same steps would decide it
    again. A rollback to c keeps what was in force at c, and stands itself in the place of the decision that it takes back:
    it appears with that one's number, in force from step c + 1.
    """

    def survives(decision: Decision) -> bool:
        undone = decision.kind == "rollback" and decision.void
        for start in lineages:
            if start.lineage <= decision.lineage:
                continue
            if start.kind == "rollback":
                bound = decision.effective_step
            else:
                # What a rollback went back to is what counts of it: a restore to that step or a later one keeps it.
                read = decision.interval * calendar.interval_steps
                bound = decision.rollback_to_step if decision.kind == "rollback" else read
            undone = undone or bound > start.starts_at_step
        return not undone

    def placed(decision: Decision) -> Decision:
        if decision.kind != "rollback":
            return decision
        first = decision.rollback_to_step + 1
        return decision.model_copy(update={"number": calendar.due_before(first), "effective_step": first})

    return sorted(
        (placed(decision) for decision in decisions if survives(placed(decision))), key=lambda decision: decision.effective_step
    )


def without_pending_rollbacks(
    decisions: tuple[Decision, ...], lineages: tuple[LineageStart, ...], reached: int
) -> tuple[tuple[Decision, ...], tuple[LineageStart, ...], list[Decision]]:
    """Rollbacks that were decided and that a state of lineage `reached` has not been through are void: with what they read,
    they are decided again. Returns decisions, lineages, and the decisions that became void."""
    pending = {d.lineage for d in decisions if d.kind == "rollback" and not d.void and d.lineage > reached}
    after = tuple(d.model_copy(update={"void": True}) if d.kind == "rollback" and d.lineage in pending else d for d in decisions)
    kept = tuple(start for start in lineages if start.kind != "rollback" or start.lineage not in pending)
    return after, kept, [d for d in after if d.kind == "rollback" and d.lineage in pending]


def remembered_decisions(
    decisions: Iterable[Decision], lineages: tuple[LineageStart, ...], calendar: DecisionCalendar
) -> tuple[Decision, ...]:
    """What a policy is shown: everything but what a restore undid; rollbacks and what they undid stay, as quarantine outlives."""
    restores = [start for start in lineages if start.kind == "restore"]
    return tuple(
        decision
        for decision in decisions
        if decision.kind == "rollback"
        or all(
            decision.interval * calendar.interval_steps <= start.starts_at_step
            for start in restores
            if start.lineage > decision.lineage
        )
    )


def in_force(surviving: Iterable[Decision], step: int) -> Decision | None:
    """The newest decision under which `step` is computed, or None before the first."""
    found = [decision for decision in surviving if decision.effective_step <= step and not decision.void]
    return found[-1] if found else None


def freeze_point_at(surviving: Iterable[Decision], step: int) -> int:
    """Index of the first trainable unit at `step`."""
    decision = in_force(surviving, step)
    return decision.freeze_point if decision else 0


def next_number(surviving: Iterable[Decision]) -> int:
    """The interval whose decision comes next."""
    return max((decision.number for decision in surviving), default=0) + 1
