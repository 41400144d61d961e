"""What all members know alike: counters, the interval under way, and what has not been acknowledged yet.

Every member keeps a copy and each copy says the same, since it is fed by votes alone. It travels as JSON to joiners and lies in
every checkpoint's manifest.
"""

import hashlib
import threading

from pydantic import BaseModel, ConfigDict, PrivateAttr

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.plan import Decision, GenerationId, Plan, StateTag
from frostline_contract.statistics import IntervalStatistics, StepRecord


class IntervalSums(BaseModel):
    """Sums over the interval's accepted steps so far. first_step: its first step."""

    first_step: int = 1
    accepted: int = 0
    loss_sum: float = 0.0
    unit_squares: list[float] = []


class RunState(BaseModel):
    """A member's account of the run: the last committed step and all that is still unconfirmed.

    step: last committed (or refused), in vote_lineage by a vote of vote_generation; for a state that was restored or drawn
    afresh, the generation of the plan that did so. accepted_steps: the learning-rate schedule's counter. decisions: adopted ones.

    learning_rate: of the last accepted step. failure: why the run must end as failed, from the step on that says so.
    given_up: number of the decision that the last vote gave up, until a later vote has passed; 0 for none.

    unconfirmed: the record of `step`, stable once a later vote has passed. records, statistics: stable, not known to be durable.
    data_epoch, data_offset: where the batch after `step` begins.
    cache_step: the first step that has asked the cache, 0 for none. agreed_step: the last one after which copies were compared.
    audited_step: the last one in which members have computed each other's work again, to the same bits.
    likenesses: how each unit's outputs lay to each other at the last interval's end (step/probing.py); empty: nobody asks.
    numerics_hash: chains every accepted and refused step with the freeze point it ran under and what else
    RunContext.numerics names.
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
        """The state of every unit that is whole here. A new lineage renames no state: only its first commit does."""
        return StateTag(lineage=self.vote_lineage, step=self.step, generation=self.vote_generation)

    @property
    def data_origin(self) -> tuple[int, int, int]:
        """Where a generation that starts now finds its data."""
        return self.step, self.data_epoch, self.data_offset

    def mark_restored(self, generation: GenerationId) -> None:
        """This state was restored or drawn afresh by the plan of `generation`."""
        self.vote_lineage, self.vote_generation, self.failure = self.lineage, generation, ""

    def chain(self, step: int, refused: bool, numerics: str = "") -> str:
        """Extend the numerics history by one step. numerics: what beside the freeze point it is told (RunContext.numerics)."""
        text = f"{self.numerics_hash}|{step}|{self.freeze_point}|{refused}" + (f"|{numerics}" if numerics else "")
        self.numerics_hash = hashlib.sha256(text.encode()).hexdigest()
        return self.numerics_hash

    def confirm(self) -> None:
        """A vote has passed: what was committed before it is stable and may leave."""
        with self._lock:
            if self.unconfirmed is not None:
                self.records.append(self.unconfirmed)
                self.unconfirmed = None
            if self.unconfirmed_statistics is not None:
                self.statistics.append(self.unconfirmed_statistics)
                self.unconfirmed_statistics = None

    def forget(self, lineage: int, step: int | None, interval: int | None) -> None:
        """Drop what is durable: records up to (lineage, step), statistics up to (lineage, interval); None: none."""
        with self._lock:
            if step is not None:
                self.records = [r for r in self.records if (r.lineage, r.step) > (lineage, step)]
            if interval is not None:
                self.statistics = [s for s in self.statistics if (s.lineage, s.number) > (lineage, interval)]

    def outgoing(self) -> tuple[list[StepRecord], list[IntervalStatistics]]:
        """What waits to be acknowledged, oldest first."""
        with self._lock:
            return list(self.records), list(self.statistics)

    def dump(self) -> dict:
        """As JSON travels to joiners and lies in manifests, unacknowledged records and statistics included."""
        with self._lock:
            return self.model_dump(mode="json")

    def take(self, other: "RunState", keep_unacknowledged: bool) -> None:
        """Become `other`; records and statistics that are still to be delivered stay where `keep_unacknowledged`."""
        with self._lock:
            for name in type(self).model_fields:
                if not (keep_unacknowledged and name in ("records", "statistics")):
                    setattr(self, name, getattr(other, name))

    def open_lineage(self, rollback: Decision, calendar: DecisionCalendar) -> None:
        """A restored state goes on under a rollback's lineage and freeze point; the rollback stands for what was due there."""
        self.lineage, self.freeze_point = rollback.lineage, rollback.freeze_point
        self.decision_number = calendar.due_before(self.step + 1)
        self.decisions = [*self.decisions, rollback]
        self.codec_chain = [point for point in self.codec_chain if point <= rollback.freeze_point]

    def adopt_by_plan(self, plan: Plan) -> None:
        """The decision that a restoring plan says is in force at the first step after the restored one."""
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
        """A restore: what follows belongs to `lineage`, and so do statistics that nobody has acknowledged yet."""
        self.lineage = lineage
        self.statistics = [item.model_copy(update={"lineage": lineage}) for item in self.statistics]
        if self.unconfirmed_statistics is not None:
            self.unconfirmed_statistics = self.unconfirmed_statistics.model_copy(update={"lineage": lineage})
