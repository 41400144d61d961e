"""The training loop of one generation: step, vote, commit; between steps it returns what the worker has to do, as a value.

Only vote results and step numbers steer the loop, so all members do the same at the same step. A failure at any moment loses
nothing: a step whose vote has passed can be committed late, and actions that are due after it are found by the next loop.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Protocol

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.phases import Phase
from frostline_contract.plan import SURVIVORS, Decision, Plan, SeenVote
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.replication.audited_step import ComputationDiffers
from frostline_trainer.replication.copies import compare_copies
from frostline_trainer.step.committing import commit_step, is_open, record_step
from frostline_trainer.step.due import (
    CheckpointDue,
    Due,
    Ended,
    FreezeDue,
    IntervalDue,
    LoopEnd,
    Prepared,
    RollbackDue,
    VotePassed,
)
from frostline_trainer.step.generation import Generation, StepGradients
from frostline_trainer.step.phases import PhaseClock
from frostline_trainer.step.run_state import RunState
from frostline_trainer.step.vote import Ballot, VoteResult, hold_vote, read_vote

STEPLESS_PAUSE_SECONDS = 0.05


class CacheCounts(Protocol):
    """Counts of the activation cache."""

    def take_counts(self) -> tuple[int, int]:
        """(hits, misses) in samples since the last call."""
        ...


class TrainingLoop:
    """Runs the steps of one generation and returns what is due between them.

    Args:
        generation: What this member computes.
        plan: The generation's plan.
        state: This member's copy of the run state.
        calendar: Which step ends which interval, and from when on which decision must be in force.
        mailbox: What this worker has received from the controller.
        clock: Measures the step's phases.
        caching: Counts hits and misses of the step.
        seen: The votes that this worker has seen: a vote is appended before its result is used for anything else.

    Attributes:
        prepared: The step under way, once its gradients are complete.
        uncovered: Pieces that the last vote showed without a unit replica in another failure domain.
    """

    def __init__(self, generation: Generation, plan: Plan, state: RunState, calendar: DecisionCalendar, mailbox: Mailbox,
                 clock: PhaseClock, caching: CacheCounts, seen: deque[SeenVote]) -> None:  # fmt: skip
        self.generation, self.plan, self.state = generation, plan, state
        self.calendar, self.mailbox = calendar, mailbox
        self.job = generation.context.job
        self.prepared: Prepared | None = None
        self.uncovered: list[int] = []
        self._clock, self._caching, self._seen = clock, caching, seen
        self._result: VoteResult | None = None
        self._news = self._voted = self._saved = False
        self._begins_with_survivors = plan.start == SURVIVORS
        self._deadline: float | None = None
        self._ending: LoopEnd | None = None

    def advance(self) -> Due:
        """Train until the worker has something to do or the loop ends. The caller has done what the last call returned."""
        while True:
            due = next(filter(None, (row.find(self) for row in BETWEEN_STEPS)), None)
            if due is None:
                self._go_on()
            elif isinstance(due, LoopEnd) and due.how is not Ended.SWITCHED and self._ending is None:
                self._last_vote()
                self._ending = due
            else:
                return due

    def commit_late(self, vote: SeenVote) -> None:
        """Commit the prepared step after a failure, by its passed vote, which this member itself may not have seen.

        The update and the record have the same bits as those of the other members. No process group is needed.
        """
        assert self.prepared is not None and self.prepared.step == vote.step, (self.prepared and self.prepared.step, vote.step)
        generation = self.generation
        result = read_vote(vote.slots, generation.context.pieces, generation.num_microbatches)
        self.state.confirm()
        commit_step(generation, self.state, self.calendar, vote.step, self.prepared.gradients, result)
        record_step(generation, self.state, vote.step, result, 0.0, self._clock.take_parts())
        self.prepared = None

    # ---- what is due, in the order of BETWEEN_STEPS

    def _vote_has_passed(self) -> VotePassed | None:
        if not self._news:
            return None
        passed = VotePassed(first=not self._voted, given_up=self.state.given_up)
        self._news, self._voted, self.state.given_up = False, True, 0
        return passed

    def _has_ended(self) -> LoopEnd | None:
        return self._ending

    def _has_failed(self) -> LoopEnd | None:
        return LoopEnd(Ended.FAILED, message=self.state.failure) if self.state.failure else None

    def _interval(self) -> IntervalDue | None:
        return IntervalDue() if is_open(self.state, self.calendar) else None

    def _lost_checkpoint(self) -> CheckpointDue | None:
        begins, self._begins_with_survivors = self._begins_with_survivors, False
        return CheckpointDue() if begins and self._checkpoint_is_due() else None

    def _decision(self) -> CheckpointDue | RollbackDue | FreezeDue | None:
        """Bring the due decision into force if the vote found that all members have it, or that it is given up."""
        result, state, number = self._result, self.state, self._due_decision()
        if result is None or not self._decision_is_missing() or not (result.decision_smallest >= number or result.give_up):
            return None
        decision = self._decision_of(number, void=result.decision_smallest < number)
        if decision.kind != "rollback" and not self._saved:
            # The guard may roll back to the state before a freeze.
            freezes = decision.freeze_point > state.freeze_point
            self._saved = freezes or self._periodic_checkpoint()
            if self._saved:
                return CheckpointDue(before_freeze=freezes)
        self._result = self._deadline = None
        if decision.kind == "rollback":
            return RollbackDue(decision)
        changed = decision.freeze_point != state.freeze_point
        state.decision_number, state.freeze_point = number, decision.freeze_point
        state.decisions.append(decision)
        return FreezeDue(decision) if changed else None

    def _drain(self) -> LoopEnd | None:
        drains = self._result is not None and self._result.drain and self.state.step < self.calendar.total_steps
        return LoopEnd(Ended.DRAINED) if drains else None

    def _checkpoint(self) -> CheckpointDue | None:
        result = self._result
        if result is None or self._saved or not (result.checkpoint or self._periodic_checkpoint()):
            return None
        self._saved = True
        return CheckpointDue(answers_wish=True)

    def _switch(self) -> LoopEnd | None:
        result = self._result
        if result is None or not result.switches_to(result.ready_smallest):
            return None
        return LoopEnd(Ended.SWITCHED, self.mailbox.plans.plan(result.ready_smallest))

    def _last_step(self) -> LoopEnd | None:
        """The end of the loop after all steps or, if the batch grows with the replicas, after all epochs."""
        epochs, samples = self.job.training.epochs, len(self.generation.context.data.train)
        grown = self.job.training.batch == "per_replica" and epochs is not None and self.state.has_read(epochs, samples)
        over = grown or self.state.step >= self.calendar.total_steps
        return LoopEnd(Ended.FINISHED) if over and not self._decision_is_missing() else None

    # ---- decisions and checkpoints

    def _due_after(self, step: int) -> int:
        """Number of the decision that must be in force before the step after `step`; 0 if there is no such step."""
        return self.calendar.due_before(step + 1) if step < self.calendar.total_steps else 0

    def _due_decision(self) -> int:
        return self._due_after(self.state.step)

    def _decision_is_missing(self) -> bool:
        return self._due_decision() > self.state.decision_number

    def _decision_of(self, number: int, void: bool) -> Decision:
        """The decision that comes into force: the one that was received, or a void one, which changes nothing, if it was late."""
        state = self.state
        decision = None if void else self.mailbox.decision(state.lineage, number)
        if decision is None:
            state.given_up = number
        if decision is None or decision.void:  # given up now, or before the state that a restore went back to
            decision = Decision(number=number, interval=number, effective_step=state.step + 1, freeze_point=state.freeze_point,
                                lineage=state.lineage, decided_in=state.lineage, reason="came too late", void=True)  # fmt: skip
        return decision

    def _checkpoint_is_due(self) -> bool:
        every = self.job.checkpoint.every_steps
        return bool(every) and self.state.step > 0 and self.state.step % every == 0

    def _periodic_checkpoint(self) -> bool:
        """Whether a periodic checkpoint is due; never after a stepless vote, since the step's own vote has taken it."""
        return self._checkpoint_is_due() and self.state.unconfirmed is not None

    # ---- a step

    def _go_on(self) -> None:
        """Compute the next step or, if its decision is late, hold a stepless vote."""
        if self._decision_is_missing():
            self._wait_for_decision()
        else:
            self._one_step(self.state.step + 1)

    def _wait_for_decision(self) -> None:
        """Hold one stepless vote, which finds whether all have the decision, or one gives it up; it may also switch or drain."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self.job.decisions.wait_seconds
        else:
            # The last vote found the decision missing: wait until a message arrives, for the pause at most.
            self.mailbox.wait(STEPLESS_PAUSE_SECONDS)
        self.generation.phase(Phase.DECISION)
        self._vote(self._ballot(self.state.step))

    def _one_step(self, step: int) -> None:
        started, phase = time.perf_counter(), self.generation.phase
        self.mailbox.check()
        self.prepared = Prepared(step, self._compute(step))
        phase(Phase.PREPARED)
        hits, misses = self._caching.take_counts()
        gradients = self.prepared.gradients
        ballot = self._ballot(step, gradients.piece_squares, gradients.losses)
        if self.generation.in_group.counts_reads:
            ballot = replace(ballot, cache_hits=hits, cache_misses=misses)
        result = self._vote(ballot, step)
        phase(Phase.COMMIT)
        commit_step(self.generation, self.state, self.calendar, step, gradients, result)
        record_step(self.generation, self.state, step, result, time.perf_counter() - started, self._clock.take_parts())
        self.prepared = None
        phase(Phase.COMMITTED)
        self.generation.tracing.committed(self.state.lineage, step)
        self._prefetch(step)
        phase(Phase.BETWEEN)

    def _compute(self, step: int) -> StepGradients:
        """The step's gradients. A difference that an audit finds may stem from any step since the last audit that agreed."""
        state = self.state
        try:
            return self.generation.compute(step)
        except ComputationDiffers as differs:
            # If the weights differ already, this computation is not to blame: compare_copies raises its own error then.
            compare_copies(self.generation, state.step, state.agreed_step)
            differs.first_step = state.audited_step + 1
            raise

    def _prefetch(self, step: int) -> None:
        """Prefetch the cache's values for the step that lies `cache.prefetch_steps` ahead, or for the last step."""
        ahead = min(step + self.job.cache.prefetch_steps, self.calendar.total_steps)
        if ahead > step:
            self.generation.prefetch(range(ahead, ahead + 1))

    # ---- votes

    def _ballot(self, step: int, piece_squares: dict[int, float] | None = None, losses: dict[int, float] | None = None) -> Ballot:
        """This member's ballot for the vote after which `step` is the last committed step."""
        due, state, box = self._due_after(step), self.state, self.mailbox
        return Ballot(
            piece_squares=piece_squares or {},
            losses=losses or {},
            ready=box.plans.votable(step, state.decision_number),
            decision=due if box.decision(state.lineage, due) is not None else state.decision_number,
            give_up=self._deadline is not None and time.monotonic() > self._deadline,
            drain=bool(box.drain),
            checkpoint=box.checkpoint,
            kept=self.generation.kept,
        )

    def _last_vote(self) -> None:
        """Hold the stepless vote that ends a run: it makes the last step stable, so that its record is sent.

        This vote switches to no plan, even if all are ready: all members have seen the vote that ends the run (protocols.md 2.5).
        """
        self._vote(replace(self._ballot(self.state.step), ready=0))

    def _vote(self, ballot: Ballot, step: int | None = None) -> VoteResult:
        """Hold a vote. step: the step that it commits, None for a stepless vote."""
        generation, state = self.generation, self.state
        self.mailbox.check()
        ruled_out = self.mailbox.plans.ruled_out(state.step if step is None else step)
        if step is not None:
            generation.phase(Phase.VOTE)
        result = hold_vote(generation.world, ballot, generation.context.pieces, generation.num_microbatches)
        generation.tracing.voted()
        if step is not None:
            generation.phase(Phase.TALLY)
            self._seen.append(SeenVote(lineage=state.lineage, step=step, generation=self.plan.generation, slots=result.slots))
            generation.phase(Phase.SEEN)
        self.uncovered = result.uncovered
        self.mailbox.plans.expire({generation for generation in ruled_out if not result.switches_to(generation.counter)})
        state.confirm()
        self._result, self._news, self._saved = result, True, False
        return result


class Row(NamedTuple):
    """One row of `BETWEEN_STEPS`: a method that finds what is due, and the reason for the row's position."""

    find: Callable[[TrainingLoop], Due | None]
    why_here: str


BETWEEN_STEPS = (
    Row(TrainingLoop._vote_has_passed, "what the vote has made stable leaves first: nothing below is needed for it"),
    Row(TrainingLoop._has_ended, "after its last vote a loop does nothing more"),
    Row(TrainingLoop._has_failed, "a run that must fail closes no interval, and takes no checkpoint"),
    Row(TrainingLoop._interval, "before anything changes the weights or the freeze point that the interval's numbers are of"),
    Row(TrainingLoop._lost_checkpoint, "of the state that a recovery starts from: the failed generation may have lost a share"),
    Row(TrainingLoop._decision, "before a switch, whose plan names the decision in force; its vote does nothing else, since the "
                                "ballots were cast before it"),
    Row(TrainingLoop._drain, "before a checkpoint: a run that stops takes its last one anyway"),
    Row(TrainingLoop._checkpoint, "before a switch: the members that hold the step's state take it"),
    Row(TrainingLoop._switch, "last of what a vote decides: the next generation has nothing of this one left to do"),
    Row(TrainingLoop._last_step, "when no vote asks for anything else, and the last due decision is in force"),
)  # fmt: skip
"""What may be due between two steps, in the order in which it is done: equal on all members, as only votes and steps decide."""
