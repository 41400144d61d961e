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
from frostline_controller.service.run import Run
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

    def __init__(self, run: Run, checkpoint_root: Path) -> None:
        self._run, self._root = run, checkpoint_root
        self.outcome: pb.RunOutcome | None = None
        self._drained: object = None
        self._missed = False
        self.cancelled = False
        self._user_mistake = self._crash_loop = False
        self.end_reason = f"the run is {run.state.state}" if run.ended else ""
        self._told_at: float | None = None
        self._scaled = False
        self._claimed: pb.RunOutcome | None = None
        self._stands = asyncio.Event()
        self._event_told = False

    @property
    def draining(self) -> str:
        """Why members are asked to stop at a checkpoint; empty where they are not."""
        state = self._run.state
        return (state.message or "drain") if state.state == RunStatus.DRAINING else ""

    async def take_over(self) -> bool:
        """A result that a predecessor claimed is the run's, whoever is left of it: `settle` writes what is missing. True where it
        stands and the run has not ended by it yet."""
        if self._run.ended:
            return False
        found = await asyncio.to_thread(current_epoch, self._root)
        if found.result is None or found.run_epoch > self._run_epoch():
            return False
        self.outcome = self._claimed = ParseDict(dict(found.result), pb.RunOutcome())
        self._stands.set()
        self._event_told = self._run.events.holds("end", self.outcome.steps, self._run.state.lineage)
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
        if self.outcome is None and not self._run.ended:
            self.outcome = outcome

    async def take_outcome(self, outcome: pb.RunOutcome) -> None:
        """A worker hands in the outcome; a result, or a pause, stands when this returns, so that it may be acknowledged."""
        if self._run.state.between:
            return  # its generation has paused already, and it had no answer
        self.note_outcome(outcome)
        self._run.wake.set()
        if not self._run.ended:
            await self._stands.wait()

    def fail(self, message: str, user_mistake: bool = False, crash_loop: bool = False) -> None:
        """The run cannot succeed: the user's mistake, a crash loop, results that differ."""
        if self.outcome is None:
            self._user_mistake, self._crash_loop = user_mistake, crash_loop
        self.note_outcome(pb.RunOutcome(status=RunStatus.FAILED, message=message, steps=self._run.step))

    async def drain(self, reason: str, cancelled: bool = False) -> None:
        """Ask all members for a checkpoint at a step boundary; without members the run just stops where it is.

        Members that a new leader has not heard of yet are asked when they come back; `settle` waits for none of them for ever.
        """
        run = self._run
        if run.ended:
            return
        self.cancelled = self.cancelled or cancelled
        if run.state.between:  # what there is to save is saved
            self.note_outcome(pb.RunOutcome(status=RunStatus.SUSPENDED, message=reason, steps=run.step))
            assert self.outcome is not None
            await self._end(self.outcome)
            return
        await run.commit(state=RunStatus.DRAINING, message=reason, paused=False)
        if self._is_deserted():
            self.note_outcome(pb.RunOutcome(status=RunStatus.SUSPENDED, message=reason, steps=run.step))
            return
        self._missed = bool(run.awaited())
        self._tell_drain()
        log.info("draining step=%s reason=%r", run.step, reason)

    async def pause(self, reason: str) -> None:
        """Members have to go and too few stay: all save a checkpoint at a step boundary, and the run goes on from it by itself.

        Does nothing where members are asked to stop already: a drain that a person asked for ends the run as it would without.
        """
        run = self._run
        if run.ended or run.state.state == RunStatus.DRAINING:
            return
        await run.commit(state=RunStatus.DRAINING, message=reason, paused=True)
        self._tell_drain()
        log.warning("pausing step=%s reason=%r", run.step, reason)

    def _is_deserted(self) -> bool:
        """No member is there that could save, and none is to be expected."""
        run = self._run
        if run.current is None:
            return True
        back_until = run.started + run.members.dead_after_seconds
        expected = run.awaited() and run.clock() < back_until
        return not expected and not any(run.members.is_alive(worker) for worker in run.current.placement.workers)

    async def settle(self, now: float) -> bool:
        """True where the run is over: nothing else is to be done for it."""
        run = self._run
        if self.draining and self._missed and self.outcome is None and self._is_deserted():
            self.note_outcome(pb.RunOutcome(status=RunStatus.SUSPENDED, message=self.draining, steps=run.step))
        if self.outcome is not None and not run.ended:
            if self._is_pause(self.outcome):
                await self._wait_for_workers(self.outcome)
                return False
            await self._end(self.outcome)
            self._told_at = now
        if not run.ended:
            if self.draining and run.current is not None and run.current.generation != self._drained:
                self._tell_drain()
            return False
        if self._told_at is None:
            self._told_at = now
        alive = [worker for worker in run.members if worker.presence != "gone" and worker.watching]
        if not self._scaled and (not alive or now - self._told_at > EXIT_WAIT_SECONDS):
            await run.scale(0)
            self._scaled = True
        return True

    def _tell_drain(self) -> None:
        """To the members of every generation anew: one that was made after a failure has not heard of it. A worker that has heard
        it stops with whatever generation it runs, so nobody outside hears it."""
        plan = self._run.current
        if plan is not None:
            self._drained = plan.generation
            self._run.streams.send_to(plan.placement.workers, pb.WatchPlanResponse(drain=pb.DrainNotice(reason=self.draining)))

    def _is_pause(self, outcome: pb.RunOutcome) -> bool:
        """Whether members have saved what they had and no person asked them to stop. A survivor may have heard of a pause that
        a failure since then has overtaken."""
        state = self._run.state
        saved = status_word(outcome.status) == RunStatus.SUSPENDED
        return saved and self._claimed is None and (state.paused or state.state == RunStatus.RUNNING)

    async def _wait_for_workers(self, outcome: pb.RunOutcome) -> None:
        """The members' checkpoint is complete: nothing of it is a result, and the next generation starts from it. Done again
        where a part of it fails."""
        run, plan = self._run, self._run.current
        assert plan is not None
        least = run.job.placement.min_workers
        why = run.state.message if run.state.paused else "workers that had been asked to leave have stopped"
        message = f"{why}; goes on by itself from step {outcome.steps} when min_workers ({least}) workers are there"
        await run.plans.append([{"kind": "plan_end", "generation": str(plan.generation), "last_step": outcome.steps}])
        if not run.events.holds("pause", outcome.steps, run.state.lineage):
            await run.event("pause", message, step=outcome.steps)
        preparing = run.state.prepared.places if run.state.prepared is not None else {}
        await run.commit(state=RunStatus.WAITING, message=message[:MESSAGE_CHARACTERS], prepared=None, paused=True)
        run.message = ""
        self._forget_outcome()
        for worker in run.members:
            if is_left_over(run, worker) or worker.worker_id in preparing:
                run.members.give_notice(worker)
                run.streams.send(worker.worker_id, pb.WatchPlanResponse(end=pb.EndNotice(reason=message)))
        log.warning("paused step=%s message=%r", outcome.steps, message)

    def _forget_outcome(self) -> None:
        """Who waits for its answer has it; the next outcome is another generation's."""
        self._stands.set()
        self._stands = asyncio.Event()
        self.outcome = None

    async def _end(self, outcome: pb.RunOutcome) -> None:
        """Each part is done once, however often one of them fails."""
        run = self._run
        self._claimed = outcome = self._claimed or await asyncio.to_thread(self._claim, outcome)
        self._stands.set()
        word = status_word(outcome.status)
        state = RunStatus(word) if word in ENDED else RunStatus.FAILED
        if self.cancelled and state == RunStatus.SUSPENDED:
            state = RunStatus.CANCELLED
        self.end_reason = outcome.message or f"the run is {state}"
        if not self._event_told:
            self._event_told = True
            await run.event("end", f"{state}: {outcome.message}" if outcome.message else state, step=outcome.steps)
        if run.current is not None:
            await run.plans.append([{"kind": "plan_end", "generation": str(run.current.generation), "last_step": outcome.steps}])
        await asyncio.to_thread(replace_durably, run.places.result, json.dumps(self._result(outcome, state), indent=2))
        await run.commit(state=state, message=outcome.message[:MESSAGE_CHARACTERS], prepared=None, paused=False)
        run.message = outcome.message
        run.streams.send_all(pb.WatchPlanResponse(end=pb.EndNotice(reason=self.end_reason)))
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
        current = self._run.current
        return current.run_epoch if current is not None else current_epoch(self._root).run_epoch

    def _result(self, outcome: pb.RunOutcome, state: RunStatus) -> dict[str, object]:
        """The run's result (docs/run-directory.md has the schema)."""
        run = self._run
        job = run.job
        known = run.identity
        settings = {
            **dict(outcome.settings),
            "job_name": job.name, "seed": job.seed, "family": job.model.family, "task": job.task.kind,
            "batch_size": job.training.batch_size, "micro_batch_size": job.training.micro_batch_size,
            "num_microbatches": job.training.num_microbatches, "reduction_leaves": job.training.reduction_leaves,
            "precision": job.training.precision, "numerics": job.training.numerics, "batch": job.training.batch,
            "total_steps": run.total_steps, "freeze_policy": job.freeze.policy.name if job.elastic.freeze else "none",
            "workers": job.placement.workers, "dataset_digest": known.dataset_digest if known else "",
            "weights_digest": known.weights_digest if known else "", "probe_digest": known.probe_digest if known else "",
            "probe_detail": known.probe_detail if known else "",
        }  # fmt: skip
        return {
            "version": RESULT_VERSION,
            "name": job.name,
            "status": state,
            "steps": outcome.steps,
            "wall_seconds": round(time.time() - run.state.started_at, 3) if run.state.started_at else 0.0,
            "digest": outcome.digest,
            "final": dict(outcome.final),
            "message": outcome.message,
            "user_mistake": self._user_mistake,
            "crash_loop": self._crash_loop,
            "checkpoint_path": outcome.checkpoint_path,
            "lineage": run.state.lineage,
            "settings": settings,
            "events": run.events.all(),
        }
