"""Freeze histories (which units are frozen when): by given epochs, by the job's policy, or of a finished run.

A policy decides by the production function `decide`, interval by interval. Where a finished run kept statistics, the policy reads
those. Else it reads stand-ins in which the last block always has the smallest gradient norm and loses most of it, the head has
nearly all that is left to learn, and no loss ever rises. So only caps, rails and schedules limit freezing: this is the deepest
history that the job allows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import Job
from frostline_contract.learning_rate import learning_rate
from frostline_contract.plan import Decision
from frostline_contract.statistics import GuardReading, IntervalStatistics, StepRecord
from frostline_controller.decisions.decide import decide
from frostline_controller.decisions.inputs import FreezeInputs
from frostline_controller.decisions.next_decision import replayed_decisions
from frostline_controller.decisions.policies.replay import check_calendar

STAND_IN = GuardReading(losses=(1.0, 1.0))
"""A guard reading that never changes, so that the guard never rolls back."""


@dataclass(frozen=True)
class Change:
    """A freeze point from a step on, or from an epoch on (a pass over the training data, counted from 0)."""

    freeze_point: int
    reason: str
    step: int | None = None
    epoch: float | None = None


@dataclass(frozen=True)
class History:
    """A freeze history.

    Attributes:
        changes: in the order of time.
        source: the origin of the changes, in words.
    """

    changes: tuple[Change, ...]
    source: str

    def deepest(self) -> int:
        """Return the deepest freeze point of all changes; 0 without changes."""
        return max((change.freeze_point for change in self.changes), default=0)


NOTHING_FREEZES = History((), "nothing freezes")


def by_epoch(points: Mapping[float, int]) -> History:
    """Return the history of given freeze points, by the epoch from which each is in force."""
    changes = [
        Change(point, f"freeze point {point} from epoch {epoch:g} on", epoch=epoch) for epoch, point in sorted(points.items())
    ]
    return History(tuple(changes), "freeze points by epoch")


def of_records(records: Sequence[StepRecord], decisions: Sequence[Decision], name: str) -> History:
    """Return the history of a finished run by its surviving records, which take rollbacks into account."""
    reasons = {(decision.effective_step, decision.freeze_point): decision.reason for decision in decisions}
    changes = []
    if records and records[0].freeze_point:
        changes.append(Change(records[0].freeze_point, "frozen from the start", step=records[0].step))
    for before, after in pairwise(records):
        if after.freeze_point != before.freeze_point:
            reason = reasons.get((after.step, after.freeze_point), "")
            changes.append(Change(after.freeze_point, reason or f"freeze point {after.freeze_point}", step=after.step))
    return History(tuple(changes), f"the decisions of {name}")


def by_policy(
    job: Job, num_units: int, calendar: DecisionCalendar, kept: Sequence[IntervalStatistics] = (), tied: bool = False
) -> History:
    """Return the history that the job's policy and rails decide, interval by interval.

    Args:
        job: with policy and rails.
        num_units: of the model.
        calendar: of the run's intervals.
        kept: statistics of a finished run, one an interval; freeze points in them are replaced by those decided here. Empty:
            stand-ins.
        tied: the head uses unit 0's matrix.

    Raises:
        ValueError: the job's freeze section is wrong, the run that policy `replay` follows cannot be read or has another
            calendar, or the kept statistics are of another model.
    """
    statistics: list[IntervalStatistics] = []
    decisions: list[Decision] = []
    changes: list[Change] = []
    initial, number, replayed = job.initial_freeze_point(num_units), 1, replayed_decisions(job, None) or ()
    check_calendar(replayed, calendar)
    while job.elastic.freeze and calendar.effective_step(number) <= calendar.total_steps and (not kept or number <= len(kept)):
        in_force = _in_force(decisions, calendar.last_step_of(number), initial)
        read = kept[number - 1] if kept else _stand_in(job, num_units, calendar, number, in_force)
        statistics.append(read.model_copy(update={"number": number, "lineage": 0, "freeze_point": in_force}))
        inputs = FreezeInputs.of_job(job, num_units, calendar, statistics, decisions, tied)
        decision = decide(replace(inputs, replayed=replayed))
        if decision.kind == "rollback":
            # A run would compute steps again; here only the freeze point is lowered, from the decision's step on.
            decision = decision.model_copy(update={"kind": "unfreeze", "lineage": 0, "rollback_to_step": -1})
        decisions.append(decision)
        if decision.freeze_point != in_force:
            changes.append(Change(decision.freeze_point, decision.reason, step=decision.effective_step))
        number += 1
    policy = job.freeze.policy.name
    return History(tuple(changes), f"policy {policy}, " + ("on a finished run's statistics" if kept else "caps and rails alone"))


def _in_force(decisions: Sequence[Decision], step: int, initial: int) -> int:
    return next((decision.freeze_point for decision in reversed(decisions) if decision.effective_step <= step), initial)


def _stand_in(job: Job, num_units: int, calendar: DecisionCalendar, number: int, freeze_point: int) -> IntervalStatistics:
    """Return the statistics of an interval with outputs that change in the last block alone, and with gradients that are smaller
    in deeper blocks, fall from interval to interval, faster in deeper blocks, and are nothing beside the head's.

    Args:
        job: the job that is simulated.
        num_units: number of units of the model.
        calendar: the steps of the intervals.
        number: the interval.
        freeze_point: units before it are frozen in the interval.
    """
    training, last = job.training, calendar.last_step_of(number)
    depths = [(unit + 1) / num_units for unit in range(freeze_point, num_units - 1)]
    falling = [1e-6 * (1 - depth) * (1 - 1e-3 * depth) ** number for depth in depths]
    norms = (*(0.0,) * freeze_point, *falling, 1.0)
    watched = job.evaluation.every_intervals and number % job.evaluation.every_intervals == 0
    return IntervalStatistics(
        number=number, lineage=0, first_step=calendar.first_step_of(number), last_step=last, freeze_point=freeze_point,
        unit_gradient_norms=norms, unit_parameters=(1,) * num_units, unit_forward_flops=(1,) * num_units,
        learning_rate=learning_rate(training.optimizer, training.schedule, last, calendar.total_steps),
        learning_rate_peak=training.optimizer.learning_rate, loss_mean=1.0, accepted_steps=calendar.interval_steps,
        guard=STAND_IN if watched else None, unit_output_changes=(*(0.0,) * (num_units - 2), 1.0, 0.0),
    )  # fmt: skip
