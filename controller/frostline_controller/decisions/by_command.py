"""What a person may ask of the freeze point by command. The next decision carries it out; what none could do is refused."""

from collections.abc import Iterable, Sequence

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import Job
from frostline_contract.plan import Decision
from frostline_controller.decisions.rails import cap_of
from frostline_controller.decisions.registry import OPERATOR
from frostline_controller.decisions.surviving import next_number


def check_a_decision_is_left(job: Job, surviving: Sequence[Decision], calendar: DecisionCalendar) -> None:
    """Raise ValueError where no decision is left that could change the freeze point.

    Args:
        job: the run's job.
        surviving: the decisions that no later lineage has taken back.
        calendar: the steps of the intervals.
    """
    if not job.elastic.freeze:
        raise ValueError("elastic.freeze is false, for the whole run: the freeze point never changes; start a run with it true")
    number = next_number(surviving)
    if (step := calendar.effective_step(number)) > calendar.total_steps:
        raise ValueError(
            f"decision {number}, the next one, would take effect at step {step}, and the run ends at step "
            f"{calendar.total_steps}: the freeze point stays as it is"
        )


def check_freeze_point(asked: int, job: Job, num_units: int, decisions: Sequence[Decision], current: int) -> None:
    """Raise ValueError where a freeze point is outside the model, below its adapters, or deeper than the rails allow a person.

    Args:
        asked: the freeze point.
        job: the run's job.
        num_units: number of units of the model.
        decisions: all decisions, those of older lineages too; a boundary that the guard rolled back is never taken again.
        current: the freeze point in force, which the rails leave alone though it be deeper.
    """
    lowest, cap = job.lowest_freeze_point(num_units), cap_of(job.freeze.rails, num_units, OPERATOR, decisions)
    deepest = max(lowest, current, cap.freeze_point)
    if lowest <= asked <= deepest:
        return
    why = "units before it freeze"
    if asked < lowest:
        why += f"; unit {lowest} is the first one with adapters"
    elif cap.note:
        why += f"; the rail {cap.note}; only a new run can have other rails"
    raise ValueError(f"freeze_point is {asked}; it must be {lowest} to {deepest} ({why})")


def request_in_words(freeze_point: int) -> str:
    """The request for a freeze point, in the words of the events about it."""
    return f"freeze point {freeze_point} by command"


def asked_again(asked: int, gone: Iterable[Decision], kept: Iterable[Decision]) -> int:
    """The request for a freeze point that is open once decisions are void, or a restore has undone them; -1: none.

    A command's decision that is gone is asked for again, unless a newer command is open or decided. What a rollback has undone is
    gone on purpose, and no caller names it.

    Args:
        asked: the request that is open; -1: none.
        gone: decisions that count no more, as they were before.
        kept: the surviving ones.
    """
    lost = [one for one in gone if one.policy == OPERATOR.name and one.kind in ("freeze", "unfreeze") and not one.void]
    if asked >= 0 or not lost:
        return asked
    newest = max(lost, key=lambda one: one.number)
    newer = any(one.policy == OPERATOR.name and not one.void and one.number > newest.number for one in kept)
    return -1 if newer else newest.freeze_point
