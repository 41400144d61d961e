"""The end of a run: its outcome becomes result.json, all workers get the notice to exit, the cluster is scaled to zero."""

import asyncio
import json
import logging
from pathlib import Path

from google.protobuf.json_format import ParseDict

from frostline_contract.run_status import ENDED, RunStatus, status_word
from frostline_controller.ledger.keeping import Bookkeeping
from frostline_controller.members.membership import GONE
from frostline_controller.members.start_wait import is_left_over
from frostline_controller.reshape.triggers import not_made
from frostline_controller.run.drain import Drain
from frostline_controller.run.epochs import current_epoch, reopen
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.gone import why_gone
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.plan_log import plan_end_line
from frostline_controller.run.pods import Pods
from frostline_controller.run.result import claimed, result_record
from frostline_controller.run.store import RunStore
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)

EXIT_WAIT_SECONDS = 5.0
"""The longest wait for workers to exit after EndNotice, before their pods are deleted, in seconds."""

MESSAGE_CHARACTERS = 2000
"""The length limit of an outcome's message in the durable state; result.json has the whole message."""


class Ending:
    """Holds the outcome until it is durable, then ends the run; in a pause, lets the run wait for workers instead.

    Args:
        facts, store, outbox, pods: the run's.
        drain: stops training at a checkpoint.
        checkpoint_root: folder of the run's checkpoints.
        bookkeeping: closes the ledger before the result is written.
    """

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox, pods: Pods, drain: Drain, checkpoint_root: Path,
                 bookkeeping: Bookkeeping) -> None:  # fmt: skip
        self._facts, self._store, self._outbox, self._pods = facts, store, outbox, pods
        self._drain, self._root, self._bookkeeping = drain, checkpoint_root, bookkeeping
        self.outcome: pb.RunOutcome | None = None
        self._user_mistake = self._crash_loop = False
        self.end_reason = f"the run is {facts.state.state}" if facts.ended else ""
        self._notified_at: float | None = None
        self._scaled = False
        self._claimed: pb.RunOutcome | None = None
        self._stands = asyncio.Event()
        self._event_recorded = False

    async def take_over(self) -> bool:
        """Take over a result that a predecessor has claimed; `settle` then writes the missing parts.

        True where there is such a result and the run has not ended by it yet.
        """
        if self._facts.ended:
            return False
        found = await asyncio.to_thread(current_epoch, self._root)
        if found.result is None or found.run_epoch > self._run_epoch():
            return False
        self.outcome = self._claimed = ParseDict(dict(found.result), pb.RunOutcome())
        self._stands.set()
        self._event_recorded = self._store.events.holds("end", self.outcome.steps, self._facts.state.lineage)
        log.warning("the result of a predecessor stands status=%s step=%s", self.outcome.status, self.outcome.steps)
        return True

    async def reopen(self) -> None:
        """Forget the run's end, since it resumes. A plan whose run epoch never began does not prevent that."""
        begun = await asyncio.to_thread(current_epoch, self._root)
        await asyncio.to_thread(reopen, self._root, min(self._run_epoch(), begun.run_epoch))
        self._forget_outcome()
        self._notified_at, self._claimed, self._event_recorded = None, None, False
        self.end_reason, self._scaled = "", False

    def note_outcome(self, outcome: pb.RunOutcome) -> None:
        """Take an outcome; the first one counts."""
        if self.outcome is None and not self._facts.ended:
            self.outcome = outcome

    async def take_outcome(self, outcome: pb.RunOutcome) -> None:
        """Take the outcome from a worker. On return the result or the pause is durable, so that it may be acknowledged."""
        if self._facts.state.between:
            return  # its generation has paused already, and it had no answer
        self.note_outcome(outcome)
        self._facts.wake.set()
        if not self._facts.ended:
            await self._stands.wait()

    def fail(self, message: str, user_mistake: bool = False, crash_loop: bool = False) -> None:
        """End the run as failed: a user's mistake, a crash loop, or results that differ."""
        if self.outcome is None:
            self._user_mistake, self._crash_loop = user_mistake, crash_loop
        self.note_outcome(pb.RunOutcome(status=RunStatus.FAILED, message=message, steps=self._facts.step))

    async def drain(self, reason: str, cancelled: bool = False) -> None:
        """Stop the run at a person's request: all members save a checkpoint first; without members the run stops where it is."""
        facts = self._facts
        if facts.ended:
            return
        if facts.state.between:  # everything is saved already
            if cancelled:
                await self._store.commit(cancelled=True)
            self.note_outcome(pb.RunOutcome(status=RunStatus.SUSPENDED, message=reason, steps=facts.step))
            assert self.outcome is not None
            await self._end(self.outcome)
            return
        if not await self._drain.ask(reason, cancelled):
            self.note_outcome(pb.RunOutcome(status=RunStatus.SUSPENDED, message=reason, steps=facts.step))

    async def settle(self, now: float) -> None:
        """Make a known outcome durable: the run ends by it, or waits for workers. Then ask newcomers to stop as well."""
        facts = self._facts
        if self.outcome is None and self._drain.is_deserted:
            self.note_outcome(pb.RunOutcome(status=RunStatus.SUSPENDED, message=self._drain.reason, steps=facts.step))
        if self.outcome is not None and not facts.ended:
            if self._is_pause(self.outcome):
                await self._wait_for_workers(self.outcome)
                return
            await self._end(self.outcome)
            self._notified_at = now
        self._drain.ask_newcomers()

    async def leave(self, now: float) -> None:
        """Delete the pods of an ended run, once workers have had the time to exit by themselves.

        Where a predecessor has done so, a number of pods that is there now is a user's request, made while nobody led.
        """
        if self._notified_at is None:
            self._notified_at = now
        alive = [worker for worker in self._facts.members if worker.presence != GONE and worker.watching]
        if not self._scaled and (not alive or now - self._notified_at > EXIT_WAIT_SECONDS):
            held = self._facts.state.replicas
            self._scaled = held == 0 or await self._pods.scale(0, held)

    def _is_pause(self, outcome: pb.RunOutcome) -> bool:
        """Whether members have saved their state without a person's request to stop.

        A survivor may have received a pause that a later failure has overtaken.
        """
        state = self._facts.state
        saved = status_word(outcome.status) == RunStatus.SUSPENDED
        return saved and self._claimed is None and (state.paused or state.state == RunStatus.RUNNING)

    async def _wait_for_workers(self, outcome: pb.RunOutcome) -> None:
        """Let the run wait for workers: the members' checkpoint is complete, it is no result, and the next generation starts from
        it.

        Repeated where a part of it fails.
        """
        facts, store, outbox, plan = self._facts, self._store, self._outbox, self._facts.current
        assert plan is not None
        least = facts.job.placement.min_workers
        why = facts.state.message if facts.state.paused else "workers that had been asked to leave have stopped"
        message = f"{why}; goes on by itself from step {outcome.steps} when min_workers ({least}) workers are there"
        await store.plans.append([plan_end_line(plan.generation, outcome.steps)])
        if not store.events.holds("pause", outcome.steps, facts.state.lineage):
            await outbox.event("pause", message, step=outcome.steps)
        preparing = facts.state.prepared.places if facts.state.prepared is not None else {}
        await store.commit(state=RunStatus.WAITING, message=message[:MESSAGE_CHARACTERS], prepared=None, paused=True)
        facts.message = ""
        self._forget_outcome()
        for worker in facts.members:
            if is_left_over(facts, worker) or worker.worker_id in preparing:
                facts.members.give_notice(worker)
                outbox.streams.send(worker.worker_id, pb.WatchPlanResponse(end=pb.EndNotice(reason=message)))
        log.warning("paused step=%s message=%r", outcome.steps, message)

    def _forget_outcome(self) -> None:
        """Release the callers that wait for this outcome; the next outcome belongs to another generation."""
        self._stands.set()
        self._stands = asyncio.Event()
        self.outcome = None

    async def _end(self, outcome: pb.RunOutcome) -> None:
        """End the run by the outcome. Each part is done once, however often one of them fails."""
        facts, store, outbox = self._facts, self._store, self._outbox
        self._claimed = outcome = self._claimed or await asyncio.to_thread(self._claim, outcome)
        self._stands.set()
        word = status_word(outcome.status)
        state = RunStatus(word) if word in ENDED else RunStatus.FAILED
        if facts.state.cancelled and state == RunStatus.SUSPENDED:
            state = RunStatus.CANCELLED
        self.end_reason = outcome.message or f"the run is {state}"
        if not self._event_recorded:
            self._event_recorded = True
            for request in not_made(facts) if state == RunStatus.COMPLETED else ():  # any other end may be followed by a resume
                await outbox.event("command", f"{request}: not made, the run has completed", step=outcome.steps)
            await outbox.event("end", f"{state}: {outcome.message}" if outcome.message else state, step=outcome.steps)
        if facts.current is not None:
            await store.plans.append([plan_end_line(facts.current.generation, outcome.steps)])
        await self._bookkeeping.close(facts.clock())
        flags = {"user_mistake": self._user_mistake, "crash_loop": self._crash_loop}
        record = result_record(facts, store, outcome, state, **flags)
        await store.replace(store.places.result, json.dumps(record, indent=2))
        message = outcome.message[:MESSAGE_CHARACTERS]
        await store.commit(state=state, message=message, prepared=None, paused=False, cancelled=False)
        facts.message = outcome.message
        outbox.streams.send_all(pb.WatchPlanResponse(end=pb.EndNotice(reason=self.end_reason)))
        log.info("run ended state=%s step=%s digest=%s message=%r", state, outcome.steps, outcome.digest, outcome.message)

    def _claim(self, outcome: pb.RunOutcome) -> pb.RunOutcome:
        """Claim the result (`run.result.claimed`), but not of a run that stops while its checkpoints are gone: the claim would be
        the first file in a folder that is not mounted, say, and a resume would take the folder for the run's own."""
        stops = status_word(outcome.status) != RunStatus.COMPLETED
        if stops and why_gone(self._facts, self._store, self._root):
            return outcome
        return claimed(self._root, self._facts.current, outcome)

    def _run_epoch(self) -> int:
        current = self._facts.current
        return current.run_epoch if current is not None else current_epoch(self._root).run_epoch
