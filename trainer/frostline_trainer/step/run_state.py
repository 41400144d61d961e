"""The run state: counters, decisions, the interval under way, and records that the controller has not acknowledged yet.

Every member keeps a copy; all copies are equal, since only votes change them. Joiners receive it as JSON, and every checkpoint's
manifest contains it.
"""

import hashlib
import json
import threading

from pydantic import BaseModel, ConfigDict, PrivateAttr

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.lineage import Place
from frostline_contract.plan import Decision, GenerationId, Plan, StateTag
from frostline_contract.statistics import IntervalStatistics, StepRecord


class IntervalSums(BaseModel):
    """Sums over the interval's accepted steps so far. first_step: its first step."""

    first_step: int = 1
    accepted: int = 0
    loss_sum: float = 0.0
    unit_squares: list[float] = []


class RunState(BaseModel):
    """A member's copy of the run state.

    Attributes:
        step: The last committed (or refused) step.
        vote_lineage, vote_generation: The lineage and generation of that step's vote; in a restored or newly initialized state
            the generation of the plan that restored or initialized it.
        accepted_steps: Counter of the learning-rate schedule.
        decisions: Adopted decisions.
        learning_rate: Of the last accepted step.
        failure: Why the run must end as failed; empty if it need not.
        given_up: Number of the decision that the last vote gave up, until a later vote has passed; 0 for none.
        unconfirmed: The record of `step`, which is stable once a later vote has passed.
        records, statistics: Stable, and not yet acknowledged as durable.
        data_epoch, data_offset: Where the batch after `step` begins.
        cache_step: The first step that has read the cache, or behind which a score may have; 0 for none.
        agreed_step: The last step after which copies of the weights were compared and equal.
        audited_step: The last step in which members have recomputed each other's work, and got the same bits.
        likenesses: Each unit's likeness at the last interval's end (step/probing.py); empty without probes.
        numerics_hash: Hash chain over all accepted and refused steps, each with its freeze point and `RunContext.numerics`.
    """

    model_config = ConfigDict(extra="forbid")

    lineage: int = 0
    step: int = 0
    vote_generation: GenerationId = GenerationId(incarnation=0, counter=0)
    vote_lineage: int = 0
    accepted_steps: int = 0
    refused_steps: int = 0
    freeze_point: int = 0
    decision_number: int = 0
    decisions: list[Decision] = []
    codec_chain: list[int] = []
    learning_rate: float = 0.0
    learning_rate_peak: float = 0.0
    failure: str = ""
    given_up: int = 0
    interval: IntervalSums = IntervalSums()
    unconfirmed: StepRecord | None = None
    unconfirmed_statistics: IntervalStatistics | None = None
    records: list[StepRecord] = []
    statistics: list[IntervalStatistics] = []
    cache_step: int = 0
    agreed_step: int = 0
    audited_step: int = 0
    numerics_hash: str = ""
    best_guard_loss: float | None = None
    likenesses: list[list[float]] = []
    data_epoch: int = 0
    data_offset: int = 0
    _lock: threading.Lock = PrivateAttr(default_factory=threading.Lock)

    @property
    def tag(self) -> StateTag:
        """The state tag of every piece that is intact here. A new lineage changes tags only with its first commit."""
        return StateTag(lineage=self.vote_lineage, step=self.step, generation=self.vote_generation)

    @property
    def data_origin(self) -> tuple[int, int, int]:
        """(step, epoch, offset) of the data at which a generation that starts now begins."""
        return self.step, self.data_epoch, self.data_offset

    def has_read(self, epochs: float, samples: int) -> bool:
        """Whether the steps so far have read so many epochs of `samples` samples each; the last one may be a part of an epoch."""
        return self.data_epoch * samples + self.data_offset >= max(1, round(epochs * samples))

    def mark_restored(self, generation: GenerationId) -> None:
        """Note that the plan of `generation` has restored or newly initialized this state."""
        self.vote_lineage, self.vote_generation, self.failure = self.lineage, generation, ""

    def chain(self, step: int, refused: bool, numerics: str = "") -> str:
        """Extend the numerics hash by one step, and return it. numerics: `RunContext.numerics`."""
        text = f"{self.numerics_hash}|{step}|{self.freeze_point}|{refused}" + (f"|{numerics}" if numerics else "")
        self.numerics_hash = hashlib.sha256(text.encode()).hexdigest()
        return self.numerics_hash

    def confirm(self) -> None:
        """Make the unconfirmed record and statistics stable, after a vote has passed: they may be sent."""
        with self._lock:
            if self.unconfirmed is not None:
                self.records.append(self.unconfirmed)
                self.unconfirmed = None
            if self.unconfirmed_statistics is not None:
                self.statistics.append(self.unconfirmed_statistics)
                self.unconfirmed_statistics = None

    def forget(self, lineage: int, step: int | None, interval: int | None) -> None:
        """Drop durable records up to (lineage, step), and statistics up to (lineage, interval); None: drop none of that kind."""
        with self._lock:
            if step is not None:
                self.records = [r for r in self.records if r.place > Place(lineage, step)]
            if interval is not None:
                self.statistics = [s for s in self.statistics if (s.lineage, s.number) > (lineage, interval)]

    def outgoing(self) -> tuple[list[StepRecord], list[IntervalStatistics]]:
        """The records and statistics that have not been acknowledged, oldest first."""
        with self._lock:
            return list(self.records), list(self.statistics)

    def dump(self) -> dict:
        """The state as JSON, for joiners and manifests, with unacknowledged records and statistics."""
        with self._lock:
            return self.model_dump(mode="json")

    def to_json(self) -> bytes:
        """The state as JSON text, which `model_validate_json` reads. NaN and infinities survive: pydantic's own text has null."""
        return json.dumps(self.dump()).encode()

    def take(self, other: "RunState", keep_unacknowledged: bool) -> None:
        """Take over all fields of `other`. keep_unacknowledged: keep own records and statistics that are still to be sent."""
        with self._lock:
            for name in type(self).model_fields:
                if not (keep_unacknowledged and name in ("records", "statistics")):
                    setattr(self, name, getattr(other, name))

    def open_lineage(self, rollback: Decision, calendar: DecisionCalendar) -> None:
        """Continue a restored state in a rollback's lineage, at its freeze point. The rollback counts as the decision due."""
        self.lineage, self.freeze_point = rollback.lineage, rollback.freeze_point
        self.decision_number = calendar.due_before(self.step + 1)
        self.decisions = [*self.decisions, rollback]
        self.codec_chain = [point for point in self.codec_chain if point <= rollback.freeze_point]

    def adopt_by_plan(self, plan: Plan) -> None:
        """Adopt the decision that a restoring plan names as in force at the first step after the restored one."""
        self.decision_number, self.freeze_point = plan.decision_number, plan.freeze_point
        self.decisions = [
            *self.decisions,
            Decision(
                number=plan.decision_number, interval=plan.decision_number, effective_step=self.step + 1,
                freeze_point=plan.freeze_point, lineage=plan.lineage, decided_in=plan.lineage,
                reason="in force where the restore starts",
            ),
        ]  # fmt: skip

    def enter_lineage(self, lineage: int) -> None:
        """Enter the lineage of a restore; unacknowledged statistics move to this lineage too."""
        self.lineage = lineage
        self.statistics = [item.model_copy(update={"lineage": lineage}) for item in self.statistics]
        if self.unconfirmed_statistics is not None:
            self.unconfirmed_statistics = self.unconfirmed_statistics.model_copy(update={"lineage": lineage})
