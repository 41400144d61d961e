"""The inputs of a freeze decision: statistics, decisions so far, the job's sections and the calendar. It may read nothing else.

No clock is among them: the present is the last step of the newest interval (docs/protocols.md 6.3). So a decision that is
computed again after a controller restart is the same decision.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import Job
from frostline_contract.job.freezing import ElasticSection, FreezeSection
from frostline_contract.job.training import EvaluationSection
from frostline_contract.plan import Decision
from frostline_contract.statistics import IntervalStatistics

ROUNDING = 1e-9
"""Slack before rounding a real number of blocks up or down, so that 12 * (1/3) is 4 whatever its last bit says."""


@dataclass(frozen=True)
class Proposal:
    """A policy's proposed freeze point (index of the first trainable unit) and its reason. Rails may clip it."""

    freeze_point: int
    reason: str


@dataclass(frozen=True)
class FreezeInputs:
    """All arguments of the decision function.

    Attributes:
        num_units: embedding (unit 0), blocks (units 1 .. num_units - 2) and head (the last unit).
        statistics: the surviving interval statistics, one an interval, oldest first.
        decisions: all decisions known, oldest first, with void ones and those of older lineages (quarantine needs them).
        tied: the head shares the embedding's matrix.
        untie_on_freeze: the shared matrix is trained untied.
        replayed: for the policy `replay`, the decisions of the other run.
        requested: a freeze point that an operator has asked for by command, to be decided now; None: nobody has.
        highest_lineage: highest lineage in any durable plan, started or not; a rollback opens the next one.
        lineage: the run's lineage, in which workers adopt this decision. A restore may have begun it after the newest interval.
        lowest: freeze point below which nothing can learn (adapters).

    Raises:
        ValueError: the numbers of units disagree.
    """

    num_units: int
    statistics: tuple[IntervalStatistics, ...]
    decisions: tuple[Decision, ...]
    freeze: FreezeSection
    elastic: ElasticSection
    evaluation: EvaluationSection
    calendar: DecisionCalendar
    tied: bool = False
    untie_on_freeze: bool = False
    replayed: tuple[Decision, ...] = ()
    requested: int | None = None
    highest_lineage: int = 0
    lineage: int = 0
    lowest: int = 0

    def __post_init__(self) -> None:
        if self.num_units < 3:
            raise ValueError(f"the model has {self.num_units} units; freezing needs at least 3: embedding, one block, head")
        for entry in self.statistics:
            if len(entry.unit_gradient_norms) != self.num_units or len(entry.unit_parameters) != self.num_units:
                raise ValueError(
                    f"statistics of interval {entry.number} hold {len(entry.unit_gradient_norms)} gradient norms and "
                    f"{len(entry.unit_parameters)} parameter counts; the model has {self.num_units} units"
                )

    @classmethod
    def of_job(
        cls,
        job: Job,
        num_units: int,
        calendar: DecisionCalendar,
        statistics: Sequence[IntervalStatistics],
        decisions: Sequence[Decision],
        tied: bool = False,
    ) -> "FreezeInputs":
        """The inputs that follow from a job; callers add `replayed`, `requested` and both lineages with `dataclasses.replace`.

        Args:
            job: the run's job, with the sections that the inputs take over.
            num_units, statistics, decisions, tied: as in the class.
            calendar: the steps of the intervals.
        """
        return cls(
            num_units=num_units,
            statistics=tuple(statistics),
            decisions=tuple(decisions),
            freeze=job.freeze,
            elastic=job.elastic,
            evaluation=job.evaluation,
            calendar=calendar,
            tied=tied,
            untie_on_freeze=job.model.untie_on_freeze,
            lowest=job.lowest_freeze_point(num_units),
        )

    @property
    def num_blocks(self) -> int:
        """L of the papers: transformer blocks, without embedding and head."""
        return self.num_units - 2

    @property
    def newest(self) -> IntervalStatistics:
        """The interval that is being decided on."""
        assert self.statistics, "a decision needs the statistics of an interval"
        return self.statistics[-1]

    @property
    def deciding_lineage(self) -> int:
        """The lineage in which the newest interval is decided."""
        return max(self.lineage, self.newest.lineage)

    @property
    def current(self) -> int:
        """The freeze point in force at the newest interval's last step, as the workers report it."""
        return self.newest.freeze_point

    @property
    def effective_step(self) -> int:
        """The first step that is computed under the newest interval's decision."""
        return self.calendar.effective_step(self.newest.number)

    def up_to(self, number: int) -> "FreezeInputs":
        """The inputs as they were when interval `number` was decided: for policies and rails that look at earlier proposals."""
        kept = tuple(entry for entry in self.statistics if entry.number <= number)
        return replace(self, statistics=kept, decisions=known_at(kept[-1].lineage, number, self.decisions), requested=None)


def known_at(lineage: int, number: int, decisions: Sequence[Decision]) -> tuple[Decision, ...]:
    """The decisions that had been made before decision `number` of `lineage`: older lineages' and earlier numbers'."""
    return tuple(decision for decision in decisions if (decision.decided_in, decision.number) < (lineage, number))


def blocks_frozen(freeze_point: int) -> int:
    """Blocks in the prefix of a freeze point: unit 0 is the embedding, so n blocks end at freeze point n + 1."""
    return max(0, freeze_point - 1)


def freeze_point_of(blocks: int) -> int:
    """The freeze point that freezes the first `blocks` blocks; the embedding freezes with the first block."""
    return blocks + 1 if blocks > 0 else 0


def whole_blocks(blocks: float) -> int:
    """A real number of blocks, rounded up."""
    return math.ceil(blocks - ROUNDING)


def not_finite(entry: IntervalStatistics) -> str | None:
    """Why an interval's statistics cannot be used: a non-finite number, or no accepted step. None where they can."""
    if entry.accepted_steps == 0:
        return f"interval {entry.number} has no accepted step"
    for unit, norm in enumerate(entry.unit_gradient_norms):
        if not math.isfinite(norm):
            return f"interval {entry.number}: gradient norm of unit {unit} is {norm}"
    if not math.isfinite(entry.loss_mean) or not math.isfinite(entry.learning_rate):
        return f"interval {entry.number}: mean loss is {entry.loss_mean}, learning rate is {entry.learning_rate}"
    return None
