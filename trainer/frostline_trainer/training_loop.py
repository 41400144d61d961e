"""The training thread's loop inside one generation: step, vote, commit; then what the step number asks for.

Everything that steers it comes out of votes, so all members do the same at the same step.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.learning_rate import learning_rate
from frostline_contract.plan import Decision, Plan, StateTag
from frostline_contract.statistics import GuardReading, IntervalStatistics, StepRecord
from frostline_trainer.engine.evaluation import evaluate, sample_losses
from frostline_trainer.engine.generation import Generation, StepGradients
from frostline_trainer.engine.vote import Ballot, VoteResult, hold_vote
from frostline_trainer.mailbox import Mailbox
from frostline_trainer.run_state import IntervalSums, RunState

log = logging.getLogger(__name__)
STEPLESS_PAUSE_SECONDS = 0.05


class Ended(Enum):
    """Why a generation's loop ended."""

    SWITCHED = "switched"
    FINISHED = "finished"
    DRAINED = "drained"
    FAILED = "failed"


@dataclass(frozen=True)
class LoopEnd:
    """plan: for SWITCHED, the plan to enter. message: for FAILED."""

    how: Ended
    plan: Plan | None = None
    message: str = ""


@dataclass
class LoopHooks:
    """What the loop asks of its surroundings.

    checkpoint(before_freeze): take a copy now. roll_back(decision): put the state of its step back. stable(): a vote has passed.
    applied(decision): a decision is in force. report(kind, reason, seconds, **detail): an event.
    parts(): step parts since the last call. cache_counts(): (hits, misses) since the last call.
    first_vote(): the first vote of this generation has passed.
    """

    checkpoint: Callable[[bool], None]
    roll_back: Callable[[Decision], None]
    stable: Callable[[], None]
    applied: Callable[[Decision], None]
    report: Callable[..., None]
    parts: Callable[[], dict[str, float]]
    cache_counts: Callable[[], tuple[int, int]]
    first_vote: Callable[[], None]


class TrainingLoop:
    """Runs steps in one generation until it ends. state is this member's copy of the run state."""

    def __init__(self, generation: Generation, plan: Plan, state: RunState, calendar: DecisionCalendar, mailbox: Mailbox,
                 hooks: LoopHooks) -> None:  # fmt: skip
        self.generation, self.plan, self.state = generation, plan, state
        self.calendar, self.mailbox, self.hooks = calendar, mailbox, hooks
        self.job = generation.context.job
        self._voted = False
        self._deadline: float | None = None
        self._rate = 0.0

    def run(self) -> LoopEnd:
        while True:
            ended = self._settle_decision()
            if ended is not None:
                return ended
            if self._is_over():
                return self._last_vote(LoopEnd(Ended.FINISHED))
            ended = self._one_step(self.state.step + 1)
            if ended is not None:
                return ended

    def _is_over(self) -> bool:
        """All steps are done, or (where the batch grows with the replicas) all epochs."""
        epochs = self.job.training.epochs
        grown = self.job.training.batch == "per_replica" and epochs is not None and self.state.data_epoch >= epochs
        return grown or self.state.step >= self.calendar.total_steps

    # ---- a step

    def _one_step(self, step: int) -> LoopEnd | None:
        started = time.perf_counter()
        gradients = self.generation.compute(step)
        self.generation.phase("vote")
        hits, misses = self.hooks.cache_counts()
        ballot = self._ballot(step, gradients.unit_squares, gradients.losses)
        result = self._vote(replace(ballot, cache_hits=hits, cache_misses=misses))
        self.generation.phase("commit")
        self._commit(step, gradients, result)
        self._record(step, result, started)
        self.generation.phase("between")
        if self.state.refused_steps > self.job.training.refused_steps_max:
            return self._last_vote(LoopEnd(Ended.FAILED, message=self._refusal_text(step, result)))
        if self.calendar.ends_interval(step):
            self._close_interval(step, result)
        return self._after_vote(result)

    def _commit(self, step: int, gradients: StepGradients, result: VoteResult) -> None:
        state = self.state
        tag = StateTag(lineage=state.lineage, step=step, generation=self.plan.generation)
        if not result.finite:
            log.warning("step %d refused: loss %s, gradient norm %s", step, result.loss, result.gradient_norm)
            self.generation.refuse(gradients, tag)
            state.refused_steps += 1
            return
        training = self.job.training
        rate = learning_rate(training.optimizer, training.schedule, state.accepted_steps + 1, self.calendar.total_steps)
        rate *= self._rate_scale()
        self.generation.commit(gradients, rate, result.gradient_norm, tag)
        # With batch: per_replica one step stands for dp_degree of the schedule's.
        state.accepted_steps += self.generation.shape.dp_degree if self.job.training.batch == "per_replica" else 1
        state.learning_rate_peak = max(state.learning_rate_peak, rate)
        self._rate = rate
        sums = state.interval
        sums.accepted += 1
        sums.loss_sum += result.loss
        sums.unit_squares = [
            a + b for a, b in zip(sums.unit_squares or [0.0] * len(result.unit_squares), result.unit_squares, strict=True)
        ]

    def _rate_scale(self) -> float:
        """With batch: per_replica the global batch grows with dp_degree; the rate may follow (never by default)."""
        kind, degree = self.job.training.learning_rate_scaling, self.generation.shape.dp_degree
        if self.job.training.batch != "per_replica" or kind == "none":
            return 1.0
        return float(degree) if kind == "linear" else degree**0.5

    def _record(self, step: int, result: VoteResult, started: float) -> None:
        state, seconds = self.state, time.perf_counter() - started
        state.step, state.vote_generation = step, self.plan.generation
        state.data_epoch, state.data_offset = self.generation.feed.place_of(step + 1)
        refused = not result.finite
        state.unconfirmed = StepRecord(
            lineage=state.lineage,
            step=step,
            loss=result.loss,
            learning_rate=0.0 if refused else self._rate,
            gradient_norm=result.gradient_norm,
            unit_gradient_norms=tuple(math.sqrt(square) for square in result.unit_squares),
            freeze_point=state.freeze_point,
            refused=refused,
            pp_degree=self.generation.shape.pp_degree,
            dp_degree=self.generation.shape.dp_degree,
            generation=str(self.plan.generation),
            step_seconds=seconds,
            step_parts=self.hooks.parts(),
            samples_per_second=self.generation.context.batch_size(self.generation.shape.dp_degree) / max(seconds, 1e-9),
            cache_hits=result.cache_hits,
            cache_misses=result.cache_misses,
            time_seconds=time.time(),
            numerics_hash=state.chain(step, refused),
        )
        prefetch = self.job.cache.prefetch_steps
        self.generation.prefetch(
            range(step + 1, min(step + prefetch, self.calendar.total_steps) + 1)[-1:] if prefetch else range(0)
        )

    def _refusal_text(self, step: int, result: VoteResult) -> str:
        bad = [unit for unit, square in enumerate(result.unit_squares) if not square < float("inf")]
        names = [self.generation.context.cut.unit_names[unit] for unit in bad]
        samples = [index for index in self.generation.feed.batch(step).indices if index >= 0]
        return (
            f"{self.state.refused_steps} steps had non-finite values, more than "
            f"training.refused_steps_max {self.job.training.refused_steps_max}; "
            f"step {step}: loss {result.loss}, gradient not finite in {names[:1] or 'no unit'}, samples {samples[:8]}...; "
            "lower training.optimizer.learning_rate or check these samples"
        )

    # ---- intervals and decisions

    def _close_interval(self, step: int, result: VoteResult) -> None:
        state, sums = self.state, self.state.interval
        number = self.calendar.interval_of(step)
        every = self.job.evaluation.every_intervals
        guard = self._read_guard() if every and number % every == 0 else None
        count = max(sums.accepted, 1)
        context = self.generation.context
        state.unconfirmed_statistics = IntervalStatistics(
            number=number,
            lineage=state.lineage,
            first_step=step - self.calendar.interval_steps + 1,
            last_step=step,
            freeze_point=state.freeze_point,
            unit_gradient_norms=tuple(math.sqrt(square / count) for square in sums.unit_squares or [0.0] * context.num_units),
            unit_parameters=tuple(sum(p.numel() for p in unit.parameters()) for unit in context.cut.units),
            unit_forward_flops=context.unit_flops,
            learning_rate=self._rate if sums.accepted else 0.0,
            learning_rate_peak=state.learning_rate_peak,
            loss_mean=sums.loss_sum / count,
            accepted_steps=sums.accepted,
            guard=guard,
        )
        if guard is not None and state.unconfirmed is not None:
            state.unconfirmed = state.unconfirmed.model_copy(update={"evaluation": guard.metrics})
        state.interval = IntervalSums(first_step=step + 1)

    def _read_guard(self) -> GuardReading:
        self.generation.phase("evaluate")
        rows, metrics = evaluate(self.generation, self.generation.context.data.guard)
        reading = GuardReading(losses=sample_losses(rows), metrics=metrics)
        best = self.state.best_guard_loss
        self.state.best_guard_loss = metrics["loss"] if best is None else min(best, metrics["loss"])
        return reading

    def _due_after(self, step: int) -> int:
        """The decision that must be in force before the step after `step`; 0 where there is no such step."""
        return self.calendar.due_before(step + 1) if step < self.calendar.total_steps else 0

    def _due(self) -> int:
        return self._due_after(self.state.step)

    def _settle_decision(self) -> LoopEnd | None:
        """Bring the due decision into force; where it is late, hold stepless votes until all have it or one gives up."""
        self._deadline = None
        while self._due() > self.state.decision_number:
            if self._deadline is None:
                self._deadline = time.monotonic() + self.job.decisions.wait_seconds
            result = self._vote(self._ballot(self.state.step))
            ended = self._after_vote(result)
            if ended is not None:
                return ended
            if self._due() > self.state.decision_number and result.decision_smallest < self._due():
                # A stepless vote that found the decision missing: wait for news, not for the full pause.
                self.mailbox.wait(STEPLESS_PAUSE_SECONDS)
        return None

    def _after_vote(self, result: VoteResult) -> LoopEnd | None:
        """What a vote decided, in one order for everybody: a decision, a drain, a checkpoint, a switch."""
        due, state = self._due(), self.state
        if due > state.decision_number and (result.decision_smallest >= due or result.give_up):
            self._adopt(due, void=result.decision_smallest < due)
            return None
        if result.drain and state.step < self.calendar.total_steps:
            return self._last_vote(LoopEnd(Ended.DRAINED))
        every = self.job.checkpoint.every_steps
        if result.checkpoint or (every and state.step % every == 0 and state.unconfirmed is not None):
            self.mailbox.tell(checkpoint=False)
            self.hooks.checkpoint(False)
        counter = result.ready_smallest
        if result.switches_to(counter):
            return LoopEnd(Ended.SWITCHED, self.mailbox.plans[counter])
        return None

    def _adopt(self, number: int, void: bool) -> None:
        state = self.state
        self._deadline = None
        decision = self.mailbox.decision(state.lineage, number)
        if void or decision is None:
            decision = Decision(number=number, interval=number, effective_step=state.step + 1, freeze_point=state.freeze_point,
                                lineage=state.lineage, reason="came too late", void=True)  # fmt: skip
            late = f"decision {number} did not come within {self.job.decisions.wait_seconds} s"
            self.hooks.report("decision_void", late, 0.0, number=str(number))
        if decision.kind == "rollback" and not decision.void:
            self.hooks.roll_back(decision)
            return
        if decision.freeze_point > state.freeze_point:
            # The guard may come back to the state before this freeze.
            self.hooks.checkpoint(True)
        changed = decision.freeze_point != state.freeze_point
        state.decision_number, state.freeze_point = number, decision.freeze_point
        state.decisions.append(decision)
        if changed:
            self.hooks.applied(decision)

    # ---- votes

    def _ballot(self, step: int, unit_squares: dict[int, float] | None = None, losses: dict[int, float] | None = None) -> Ballot:
        """What this member brings to the vote after which `step` is the last committed one."""
        due, state, box = self._due_after(step), self.state, self.mailbox
        return Ballot(
            unit_squares=unit_squares or {},
            losses=losses or {},
            ready=box.votable(step, state.decision_number),
            decision=due if box.decision(state.lineage, due) is not None else state.decision_number,
            give_up=self._deadline is not None and time.monotonic() > self._deadline,
            drain=bool(box.drain),
            checkpoint=box.checkpoint,
            kept=self.generation.kept,
        )

    def _last_vote(self, ended: LoopEnd) -> LoopEnd:
        """A run ends with one vote that carries no step, so that its last step is stable and leaves (PROTOCOLS 2.5).

        It switches to nothing, whoever is ready: all members have seen the vote that ends the run.
        """
        self._vote(replace(self._ballot(self.state.step), ready=0))
        return ended

    def _vote(self, ballot: Ballot) -> VoteResult:
        context = self.generation.context
        result = hold_vote(self.generation.world, ballot, context.num_units, self.generation.num_microbatches)
        self.state.confirm()
        if not self._voted:
            self._voted = True
            self.hooks.first_vote()
        self.hooks.stable()
        return result
