"""A worker's actions between two steps, one for each kind of value that the training loop returns (step/due.py).

Which action is due when, and in which order, is in the loop's table `BETWEEN_STEPS`.
"""

import time

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.phases import Phase
from frostline_contract.plan import Decision
from frostline_proto.v1 import control_pb2
from frostline_trainer.checkpoints.last_files import who_says
from frostline_trainer.checkpoints.saving import Saving
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.generations.entering import Entered, Entrance
from frostline_trainer.generations.forming import Preparation
from frostline_trainer.generations.moves import release_unneeded
from frostline_trainer.prefix.cache_use import CacheUse
from frostline_trainer.replication.copies import compare_copies
from frostline_trainer.step.committing import close_interval
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.due import CheckpointDue, Due, FreezeDue, IntervalDue, LoopEnd, RollbackDue, VotePassed
from frostline_trainer.step.run_state import RunState


class BetweenSteps:
    """Carries out the actions between steps. The next generation can repeat each: only a finished one is in the run state.

    Args:
        context, state: the run's, on this worker.
        calendar: the steps of the intervals.
        mailbox: the controller's notices.
        client: sends events to the controller.
        saving: writes checkpoints, and restores one for a rollback.
        entrance: keeps the chain of boundaries at which values pass through the codec.
        caching: connects the cache to the stages of a new freeze point.
        preparation: the groups of generations, of which older ones are closed here.
    """

    def __init__(self, context: RunContext, state: RunState, calendar: DecisionCalendar, mailbox: Mailbox, client: ControlClient,
                 saving: Saving, entrance: Entrance, caching: CacheUse, preparation: Preparation) -> None:  # fmt: skip
        self._context, self._state, self._calendar = context, state, calendar
        self._mailbox, self._client, self._saving = mailbox, client, saving
        self._entrance, self._caching, self._preparation = entrance, caching, preparation

    def do(self, entered: Entered, due: Due) -> None:
        """Carry out one action. Raises RuntimeError if a member is lost during a collective one."""
        match due:
            case VotePassed():
                self._after_vote(entered, due)
            case IntervalDue():
                close_interval(entered.generation, self._state, self._calendar)
                entered.generation.phase(Phase.BETWEEN)
            case CheckpointDue():
                self._save(entered, due)
            case RollbackDue():
                self._roll_back(entered, due.decision)
            case FreezeDue():
                self._freeze(entered, due.decision)
            case LoopEnd():
                raise AssertionError("the end of a loop is no act between steps")

    def _after_vote(self, entered: Entered, passed: VotePassed) -> None:
        if passed.given_up:
            late = f"decision {passed.given_up} did not come within {self._context.job.decisions.wait_seconds} s"
            self._report("decision_void", late, 0.0, number=str(passed.given_up))
        if passed.first:
            # This generation's members hold all state, so older generations can be closed.
            self._preparation.close_before(entered.plan.generation)
            self._preparation.forget_switch(entered.plan)
            release_unneeded(self._context, entered.plan, entered.generation.worker_id)
        self._saving.stable()
        if entered.is_sender:
            self._client.wake()

    def _save(self, entered: Entered, due: CheckpointDue) -> None:
        generation, state = entered.generation, self._state
        generation.phase(Phase.CHECKPOINT)
        # A checkpoint lacks the share of a member that skips it, so either all members take it or none does.
        behind = [] if due.before_freeze else who_says(generation, self._saving.is_behind(entered))
        if not behind:
            state.agreed_step = compare_copies(generation, state.step, state.agreed_step)
            self._saving.checkpoint(entered, state, due.before_freeze)
        elif entered.is_sender:
            self._saving.leave_out(state.step, behind)
        generation.phase(Phase.BETWEEN)
        if due.answers_wish and not behind:
            self._mailbox.put_notice(checkpoint=False)

    def _freeze(self, entered: Entered, decision: Decision) -> None:
        """Bring a freeze into force: rebuild stages, schedule and optimizer. A reshape may follow."""
        entered.generation.phase(Phase.FREEZE)
        self._entrance.extend_chain(decision.freeze_point)
        self._rebuild(entered, decision.freeze_point)

    def _roll_back(self, entered: Entered, decision: Decision) -> None:
        """Restore weights, moments, data position and freeze point of an earlier step together (docs/protocols.md 6.6)."""
        started = time.perf_counter()
        entered.generation.phase(Phase.ROLLBACK)
        pieces = entered.plan.needs(entered.generation.worker_id)
        self._context.holdings.tear(pieces)
        restored = self._saving.restore(entered, decision.rollback_to_step, self._state)
        restored.open_lineage(decision, self._calendar)
        restored.mark_restored(entered.plan.generation)
        self._state.take(restored, keep_unacknowledged=True)
        self._context.holdings.settle(pieces, self._state.tag)
        entered.generation.rewind(self._state.data_origin)
        self._rebuild(entered, decision.freeze_point)
        # From here on the newest manifest is the new lineage's (docs/protocols.md 6.6).
        self._saving.checkpoint(entered, self._state, before_freeze=True)
        if entered.is_sender:
            text = f"rolled back to step {restored.step}: {decision.reason}"
            self._report("guard", text, time.perf_counter() - started)

    def _rebuild(self, entered: Entered, freeze_point: int) -> None:
        entered.generation.freeze_to(freeze_point, tuple(self._state.codec_chain), self._caching.round_trip)
        self._caching.connect(entered.generation, self._state)

    def _report(self, kind: str, reason: str, seconds: float, **detail: str) -> None:
        """Send an event. If every member sends it, no failure of one member loses it; the controller records it once."""
        at = {"step": self._state.step, "lineage": self._state.lineage}
        self._client.add_event(control_pb2.RunEvent(kind=kind, reason=reason, seconds=seconds, detail=detail, **at))
