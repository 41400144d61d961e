"""The end of a run: its outcome becomes result.json, everyone is told to exit, the cluster is scaled to nothing."""

import asyncio
import json
import logging
import time
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict

from frostline_contract.durable_files import replace_durably
from frostline_contract.run_status import ENDED, RunStatus, status_word
from frostline_controller.epochs import claim_result, current_epoch, reopen
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.pods import Pods
from frostline_controller.run.store import RunStore
from frostline_controller.service.start_wait import is_left_over
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)

RESULT_VERSION = 1
EXIT_WAIT_SECONDS = 5.0
"""How long workers may take to exit after EndNotice before their pods are taken away."""

MESSAGE_CHARACTERS = 2000
"""Of an outcome's message in the durable state; result.json has all of it."""


class Ending:
    """Holds the outcome until it is durable, then ends the run; or has it wait for workers, where they had to go."""

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox, pods: Pods, checkpoint_root: Path) -> None:
        self._facts, self._store, self._outbox, self._pods, self._root = facts, store, outbox, pods, checkpoint_root
        self.outcome: pb.RunOutcome | None = None
        self._drained: object = None
        self._missed = False
        self.cancelled = False
        self._user_mistake = self._crash_loop = False
        self.end_reason = f"the run is {facts.state.state}" if facts.ended else ""
        self._told_at: float | None = None
        self._scaled = False
        self._claimed: pb.RunOutcome | None = None
        self._stands = asyncio.Event()
        self._event_told = False

    @property
    def draining(self) -> str:
        """Why members are asked to stop at a checkpoint; empty where they are not."""
        state = self._facts.state
        return (state.message or "drain") if state.state == RunStatus.DRAINING else ""

    async def take_over(self) -> bool:
        """A result that a predecessor claimed is the run's, whoever is left of it: `settle` writes what is missing. True where it
        stands and the run has not ended by it yet."""
        if self._facts.ended:
            return False
        found = await asyncio.to_thread(current_epoch, self._root)
        if found.result is None or found.run_epoch > self._run_epoch():
            return False
        self.outcome = self._claimed = ParseDict(dict(found.result), pb.RunOutcome())
        self._stands.set()
        self._event_told = self._store.events.holds("end", self.outcome.steps, self._facts.state.lineage)
        log.warning("the result of a predecessor stands status=%s step=%s", self.outcome.status, self.outcome.steps)
        return True

    async def reopen(self) -> None:
        """The run resumes: forget how it ended. A plan whose run epoch never began is no reason not to."""
        begun = await asyncio.to_thread(current_epoch, self._root)
        await asyncio.to_thread(reopen, self._root, min(self._run_epoch(), begun.run_epoch))
        self._forget_outcome()
        self._told_at, self._claimed, self._event_told = None, None, False
        self.cancelled, self.end_reason, self._scaled = False, "", False

    def note_outcome(self, outcome: pb.RunOutcome) -> None:
        """The first outcome counts."""
        if self.outcome is None and not self._facts.ended:
            self.outcome = outcome

    async def take_outcome(self, outcome: pb.RunOutcome) -> None:
        """A worker hands in the outcome; a result, or a pause, stands when this returns, so that it may be acknowledged."""
        if self._facts.state.between:
            return  # its generation has paused already, and it had no answer
        self.note_outcome(outcome)
        self._facts.wake.set()
        if not self._facts.ended:
            await self._stands.wait()

    def fail(self, message: str, user_mistake: bool = False, crash_loop: bool = False) -> None:
        """The run cannot succeed: the user's mistake, a crash loop, results that differ."""
        if self.outcome is None:
            self._user_mistake, self._crash_loop = user_mistake, crash_loop
        self.note_outcome(pb.RunOutcome(status=RunStatus.FAILED, message=message, steps=self._facts.step))

    async def drain(self, reason: str, cancelled: bool = False) -> None:
        """Ask all members for a checkpoint at a step boundary; without members the run just stops where it is.

        Members that a new leader has not heard of yet are asked when they come back; `settle` waits for none of them for ever.
        """
        facts, store = self._facts, self._store
        if facts.ended:
            return
        self.cancelled = self.cancelled or cancelled
        if facts.state.between:  # what there is to save is saved
            self.note_outcome(pb.RunOutcome(status=RunStatus.SUSPENDED, message=reason, steps=facts.step))
            assert self.outcome is not None
            await self._end(self.outcome)
            return
        await store.commit(state=RunStatus.DRAINING, message=reason, paused=False)
        if self._is_deserted():
            self.note_outcome(pb.RunOutcome(status=RunStatus.SUSPENDED, message=reason, steps=facts.step))
            return
        self._missed = bool(facts.awaited())
        self._tell_drain()
        log.info("draining step=%s reason=%r", facts.step, reason)

    async def pause(self, reason: str) -> None:
        """Members have to go and too few stay: all save a checkpoint at a step boundary, and the run goes on from it by itself.

        Does nothing where members are asked to stop already: a drain that a person asked for ends the run as it would without.
        """
        facts, store = self._facts, self._store
        if facts.ended or facts.state.state == RunStatus.DRAINING:
            return
        await store.commit(state=RunStatus.DRAINING, message=reason, paused=True)
        self._tell_drain()
        log.warning("pausing step=%s reason=%r", facts.step, reason)

    def _is_deserted(self) -> bool:
        """No member is there that could save, and none is to be expected."""
        facts = self._facts
        if facts.current is None:
            return True
        back_until = facts.started + facts.members.dead_after_seconds
        expected = facts.awaited() and facts.clock() < back_until
        return not expected and not any(facts.members.is_alive(worker) for worker in facts.current.placement.workers)

    async def settle(self, now: float) -> bool:
        """True where the run is over: nothing else is to be done for it."""
        facts, pods = self._facts, self._pods
        if self.draining and self._missed and self.outcome is None and self._is_deserted():
            self.note_outcome(pb.RunOutcome(status=RunStatus.SUSPENDED, message=self.draining, steps=facts.step))
        if self.outcome is not None and not facts.ended:
            if self._is_pause(self.outcome):
                await self._wait_for_workers(self.outcome)
                return False
            await self._end(self.outcome)
            self._told_at = now
        if not facts.ended:
            if self.draining and facts.current is not None and facts.current.generation != self._drained:
                self._tell_drain()
            return False
        if self._told_at is None:
            self._told_at = now
        alive = [worker for worker in facts.members if worker.presence != "gone" and worker.watching]
        if not self._scaled and (not alive or now - self._told_at > EXIT_WAIT_SECONDS):
            await pods.scale(0)
            self._scaled = True
        return True

    def _tell_drain(self) -> None:
        """To the members of every generation anew: one that was made after a failure has not heard of it. A worker that has heard
        it stops with whatever generation it runs, so nobody outside hears it."""
        plan = self._facts.current
        if plan is not None:
            self._drained = plan.generation
            self._outbox.streams.send_to(plan.placement.workers, pb.WatchPlanResponse(drain=pb.DrainNotice(reason=self.draining)))

    def _is_pause(self, outcome: pb.RunOutcome) -> bool:
        """Whether members have saved what they had and no person asked them to stop. A survivor may have heard of a pause that
        a failure since then has overtaken."""
        state = self._facts.state
        saved = status_word(outcome.status) == RunStatus.SUSPENDED
        return saved and self._claimed is None and (state.paused or state.state == RunStatus.RUNNING)

    async def _wait_for_workers(self, outcome: pb.RunOutcome) -> None:
        """The members' checkpoint is complete: nothing of it is a result, and the next generation starts from it. Done again
        where a part of it fails."""
        facts, store, outbox, plan = self._facts, self._store, self._outbox, self._facts.current
        assert plan is not None
        least = facts.job.placement.min_workers
        why = facts.state.message if facts.state.paused else "workers that had been asked to leave have stopped"
        message = f"{why}; goes on by itself from step {outcome.steps} when min_workers ({least}) workers are there"
        await store.plans.append([{"kind": "plan_end", "generation": str(plan.generation), "last_step": outcome.steps}])
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
        """Who waits for its answer has it; the next outcome is another generation's."""
        self._stands.set()
        self._stands = asyncio.Event()
        self.outcome = None

    async def _end(self, outcome: pb.RunOutcome) -> None:
        """Each part is done once, however often one of them fails."""
        facts, store, outbox = self._facts, self._store, self._outbox
        self._claimed = outcome = self._claimed or await asyncio.to_thread(self._claim, outcome)
        self._stands.set()
        word = status_word(outcome.status)
        state = RunStatus(word) if word in ENDED else RunStatus.FAILED
        if self.cancelled and state == RunStatus.SUSPENDED:
            state = RunStatus.CANCELLED
        self.end_reason = outcome.message or f"the run is {state}"
        if not self._event_told:
            self._event_told = True
            await outbox.event("end", f"{state}: {outcome.message}" if outcome.message else state, step=outcome.steps)
        if facts.current is not None:
            await store.plans.append(
                [{"kind": "plan_end", "generation": str(facts.current.generation), "last_step": outcome.steps}]
            )
        await asyncio.to_thread(replace_durably, store.places.result, json.dumps(self._result(outcome, state), indent=2))
        await store.commit(state=state, message=outcome.message[:MESSAGE_CHARACTERS], prepared=None, paused=False)
        facts.message = outcome.message
        outbox.streams.send_all(pb.WatchPlanResponse(end=pb.EndNotice(reason=self.end_reason)))
        log.info("run ended state=%s step=%s digest=%s message=%r", state, outcome.steps, outcome.digest, outcome.message)

    def _claim(self, outcome: pb.RunOutcome) -> pb.RunOutcome:
        """The outcome that stands: this one, or what a predecessor claimed and could not write any more (docs/protocols.md 5.6).

        Raises Conflict where another world goes on with the run; OSError where the epoch object cannot be written. A failure
        is told all the same: it is no result that a second one could contradict.
        """
        try:
            stands: dict[str, Any] = dict(claim_result(self._root, self._run_epoch(), MessageToDict(outcome)))
        except OSError as error:
            if outcome.status != RunStatus.FAILED:
                raise
            log.warning("the result is not claimed error=%s", error)
            return outcome
        return ParseDict(stands, pb.RunOutcome())

    def _run_epoch(self) -> int:
        current = self._facts.current
        return current.run_epoch if current is not None else current_epoch(self._root).run_epoch

    def _result(self, outcome: pb.RunOutcome, state: RunStatus) -> dict[str, object]:
        """The run's result (docs/run-directory.md has the schema)."""
        facts, store = self._facts, self._store
        job = facts.job
        known = facts.identity
        settings = {
            **dict(outcome.settings),
            "job_name": job.name, "seed": job.seed, "family": job.model.family, "task": job.task.kind,
            "batch_size": job.training.batch_size, "micro_batch_size": job.training.micro_batch_size,
            "num_microbatches": job.training.num_microbatches, "reduction_leaves": job.training.reduction_leaves,
            "precision": job.training.precision, "numerics": job.training.numerics, "batch": job.training.batch,
            "total_steps": facts.total_steps, "freeze_policy": job.freeze.policy.name if job.elastic.freeze else "none",
            "workers": job.placement.workers, "dataset_digest": known.dataset_digest if known else "",
            "weights_digest": known.weights_digest if known else "", "probe_digest": known.probe_digest if known else "",
            "probe_detail": known.probe_detail if known else "",
        }  # fmt: skip
        return {
            "version": RESULT_VERSION,
            "name": job.name,
            "status": state,
            "steps": outcome.steps,
            "wall_seconds": round(time.time() - facts.state.started_at, 3) if facts.state.started_at else 0.0,
            "digest": outcome.digest,
            "final": dict(outcome.final),
            "message": outcome.message,
            "user_mistake": self._user_mistake,
            "crash_loop": self._crash_loop,
            "checkpoint_path": outcome.checkpoint_path,
            "lineage": facts.state.lineage,
            "settings": settings,
            "events": store.events.all(),
        }
