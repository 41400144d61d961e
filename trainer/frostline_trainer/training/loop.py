"""The training thread's loop inside one generation: step, vote, commit; then what the step number asks for.

Everything that steers it comes out of votes, so all members do the same at the same step. A failure at any moment loses
nothing: what a vote has decided can be committed late, and what a step asks for afterwards is done where the next loop starts.
"""

import time
from dataclasses import replace

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.phases import Phase
from frostline_contract.plan import SURVIVORS, Decision, Plan, SeenVote
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.engine.auditing import ComputationDiffers
from frostline_trainer.engine.copies import compare_copies
from frostline_trainer.engine.generation import Generation, StepGradients
from frostline_trainer.engine.vote import Ballot, VoteResult, hold_vote, read_vote
from frostline_trainer.training.committing import commit_step, record_step
from frostline_trainer.training.hooks import Ended, LoopEnd, LoopHooks, Prepared
from frostline_trainer.training.interval_closing import close_interval, is_open
from frostline_trainer.training.run_state import RunState

STEPLESS_PAUSE_SECONDS = 0.05


class TrainingLoop:
    """Runs steps in one generation until it ends. state is this member's copy of the run state.

    prepared: the step under way, once its gradients are complete. uncovered: units that the last vote showed without a keeper
    in another failure domain.
    """

    def __init__(self, generation: Generation, plan: Plan, state: RunState, calendar: DecisionCalendar, mailbox: Mailbox,
                 hooks: LoopHooks) -> None:  # fmt: skip
        self.generation, self.plan, self.state = generation, plan, state
        self.calendar, self.mailbox, self.hooks = calendar, mailbox, hooks
        self.job = generation.context.job
        self.prepared: Prepared | None = None
        self.uncovered: list[int] = []
        self._voted = False
        self._deadline: float | None = None

    def run(self) -> LoopEnd:
        ended = self._finish_step()
        if ended is None and self.plan.start == SURVIVORS and self._checkpoint_is_due():
            # The failed generation may have lost a share of it.
            self._checkpoint()
        while ended is None:
            ended = self._settle_decision()
            if ended is None and self._is_over():
                return self._last_vote(LoopEnd(Ended.FINISHED))
            if ended is None:
                ended = self._one_step(self.state.step + 1)
        return ended

    def commit_late(self, vote: SeenVote) -> None:
        """Commit the prepared step by its vote, which has passed, though this member may not have seen it: after a failure.

        The update and the record are those of the others, to the last bit. No group is needed.
        """
        assert self.prepared is not None and self.prepared.step == vote.step, (self.prepared and self.prepared.step, vote.step)
        generation = self.generation
        result = read_vote(vote.slots, generation.context.num_units, generation.num_microbatches)
        self.state.confirm()
        commit_step(generation, self.state, self.calendar, vote.step, self.prepared.gradients, result)
        record_step(generation, self.state, vote.step, result, 0.0, self.hooks.parts())
        self.prepared = None

    def _is_over(self) -> bool:
        """All steps are done, or (where the batch grows with the replicas) all epochs."""
        epochs = self.job.training.epochs
        grown = self.job.training.batch == "per_replica" and epochs is not None and self.state.data_epoch >= epochs
        return grown or self.state.step >= self.calendar.total_steps

    # ---- a step

    def _one_step(self, step: int) -> LoopEnd | None:
        started, phase = time.perf_counter(), self.generation.phase
        self.hooks.check()
        self.prepared = Prepared(step, self._compute(step))
        phase(Phase.PREPARED)
        hits, misses = self.hooks.cache_counts()
        gradients = self.prepared.gradients
        ballot = self._ballot(step, gradients.unit_squares, gradients.losses)
        result = self._vote(replace(ballot, cache_hits=hits, cache_misses=misses), step)
        phase(Phase.COMMIT)
        commit_step(self.generation, self.state, self.calendar, step, gradients, result)
        record_step(self.generation, self.state, step, result, time.perf_counter() - started, self.hooks.parts())
        self.prepared = None
        phase(Phase.COMMITTED)
        self._prefetch(step)
        phase(Phase.BETWEEN)
        return self._finish_step() or self._after_vote(result)

    def _compute(self, step: int) -> StepGradients:
        """The step's gradients. What an audit finds may be older than this step: all since the last one that agreed."""
        state = self.state
        try:
            return self.generation.compute(step)
        except ComputationDiffers as differs:
            # Where already the weights differ nobody has computed anything wrong: that is told instead.
            compare_copies(self.generation, state.step, state.agreed_step)
            differs.first_step = state.audited_step + 1
            raise

    def _finish_step(self) -> LoopEnd | None:
        """What the last committed step asks for, whoever is a member by now; nothing where it has been done."""
        if self.state.failure:
            return self._last_vote(LoopEnd(Ended.FAILED, message=self.state.failure))
        if is_open(self.state, self.calendar):
            close_interval(self.generation, self.state, self.calendar)
            self.generation.phase(Phase.BETWEEN)
        return None

    def _prefetch(self, step: int) -> None:
        prefetch = self.job.cache.prefetch_steps
        self.generation.prefetch(
            range(step + 1, min(step + prefetch, self.calendar.total_steps) + 1)[-1:] if prefetch else range(0)
        )

    # ---- decisions

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
            self.generation.phase(Phase.DECISION)
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
        if result.checkpoint or (self._checkpoint_is_due() and state.unconfirmed is not None):
            self._checkpoint()
            self.mailbox.tell(checkpoint=False)
        counter = result.ready_smallest
        if result.switches_to(counter):
            return LoopEnd(Ended.SWITCHED, self.mailbox.plans.plan(counter))
        return None

    def _checkpoint_is_due(self) -> bool:
        every = self.job.checkpoint.every_steps
        return bool(every) and self.state.step > 0 and self.state.step % every == 0

    def _checkpoint(self, before_freeze: bool = False) -> None:
        self.generation.phase(Phase.CHECKPOINT)
        self.state.agreed_step = compare_copies(self.generation, self.state.step, self.state.agreed_step)
        self.hooks.checkpoint(before_freeze)
        self.generation.phase(Phase.BETWEEN)

    def _adopt(self, number: int, void: bool) -> None:
        state = self.state
        self._deadline = None
        decision = None if void else self.mailbox.decision(state.lineage, number)
        if decision is None:
            state.given_up = number
        if decision is None or decision.void:  # given up now, or before the state that a restore went back to
            decision = Decision(number=number, interval=number, effective_step=state.step + 1, freeze_point=state.freeze_point,
                                lineage=state.lineage, decided_in=state.lineage, reason="came too late", void=True)  # fmt: skip
        if decision.kind == "rollback":
            self.hooks.roll_back(decision)
            return
        if decision.freeze_point > state.freeze_point:
            # The guard may come back to the state before this freeze.
            self._checkpoint(before_freeze=True)
        elif self._checkpoint_is_due() and state.unconfirmed is not None:
            self._checkpoint()
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
            ready=box.plans.votable(step, state.decision_number),
            decision=due if box.decision(state.lineage, due) is not None else state.decision_number,
            give_up=self._deadline is not None and time.monotonic() > self._deadline,
            drain=bool(box.drain),
            checkpoint=box.checkpoint,
            kept=self.generation.kept,
        )

    def _last_vote(self, ended: LoopEnd) -> LoopEnd:
        """A run ends with one vote that carries no step, so that its last step is stable and leaves (docs/protocols.md 2.5).

        It switches to nothing, whoever is ready: all members have seen the vote that ends the run.
        """
        self._vote(replace(self._ballot(self.state.step), ready=0))
        return ended

    def _vote(self, ballot: Ballot, step: int | None = None) -> VoteResult:
        """Hold a vote. step: the step that it commits, None for a vote without one."""
        generation, state = self.generation, self.state
        self.hooks.check()
        ruled_out = self.mailbox.plans.ruled_out(state.step if step is None else step)
        if step is not None:
            generation.phase(Phase.VOTE)
        result = hold_vote(generation.world, ballot, generation.context.num_units, generation.num_microbatches)
        if step is not None:
            generation.phase(Phase.TALLY)
            self.hooks.seen(SeenVote(lineage=state.lineage, step=step, generation=self.plan.generation, slots=result.slots))
            generation.phase(Phase.SEEN)
        self.uncovered = result.uncovered
        self.mailbox.plans.expire({generation for generation in ruled_out if not result.switches_to(generation.counter)})
        self._make_stable()
        return result

    def _make_stable(self) -> None:
        """A vote has passed: what was committed before it is stable and may leave."""
        self.state.confirm()
        if self.state.given_up:
            late = f"decision {self.state.given_up} did not come within {self.job.decisions.wait_seconds} s"
            self.hooks.report("decision_void", late, 0.0, everybody=True, number=str(self.state.given_up))
            self.state.given_up = 0
        if not self._voted:
            self._voted = True
            self.hooks.first_vote()
        self.hooks.stable()
