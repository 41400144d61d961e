"""A worker: one training process. It joins the run, enters the generations that name it, and ends when it is told to.

    setup -> register -> (prepare a plan -> enter it -> train until it ends)* -> result

Environment: see docs/architecture.md. Exit codes: 0 ended as told, 2 the user's mistake, 3 refused by the controller, 70 a fault.
"""

import logging
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import Job, load_job
from frostline_contract.plan import Decision, Plan
from frostline_proto.v1 import control_pb2, plan_pb2
from frostline_rpc.convert import to_message
from frostline_trainer.caching import CacheUse
from frostline_trainer.collectives import open_store
from frostline_trainer.control_client import ControlClient, Refused
from frostline_trainer.engine.generation import Generation
from frostline_trainer.entering import Entered, Entrance
from frostline_trainer.finishing import (
    final_score,
    make_outcome,
    save_final_model,
    unwritten_text,
    wait_for_manifest,
    world_digest,
)
from frostline_trainer.identity import Identity
from frostline_trainer.introducing import heartbeat, make_registration
from frostline_trainer.mailbox import Mailbox
from frostline_trainer.phases import PhaseClock
from frostline_trainer.run_state import RunState
from frostline_trainer.saving import Saving
from frostline_trainer.setup import build_context
from frostline_trainer.training_loop import Ended, LoopEnd, LoopHooks, TrainingLoop

log = logging.getLogger(__name__)
EXIT_DONE, EXIT_USER, EXIT_REFUSED, EXIT_FAULT = 0, 2, 3, 70


class Worker:
    """One worker's life. Everything between two plans is in `self`; everything of one generation in an `Entered`."""

    def __init__(self, identity: Identity, job: Job) -> None:
        self.identity, self.job = identity, job
        self.mailbox = Mailbox(identity.worker_id)
        self.clock = PhaseClock()
        self.state = RunState()
        self.entered: Entered | None = None
        self.closing: Generation | None = None
        self.switched_to: Plan | None = None

    def run(self) -> int:
        self.context = build_context(self.job)
        self.store, store_port = open_store(self.identity.host)
        feed_steps = self.context.order(1).steps_per_epoch
        self.calendar = DecisionCalendar(
            self.job.interval_steps(feed_steps), self.job.decisions.lag_steps, self.job.total_steps(feed_steps)
        )
        registration = make_registration(self.identity, self.context, store_port, feed_steps)
        self.client = ControlClient(
            self.identity.controller_file, self.identity.token, registration, self.mailbox, self._heartbeat, self._acknowledge
        )
        response = self.client.register()
        self.caching = CacheUse(
            self.context, response.cache_address, self.identity.token, self.identity.worker_id, self.identity.run_dir
        )
        self.saving = Saving(self.context, Path(response.checkpoint_root), self.client)
        self.client.start(self._outgoing)
        self.entrance = Entrance(self.context, self.identity, self.store, self.mailbox, self.client, self.saving.root)
        self.entrance.start()
        try:
            return self._generations()
        finally:
            self.caching.close()
            self.client.stop()

    # ---- the life between plans

    def _generations(self) -> int:
        while True:
            plan = self.entrance.next_plan(self.entered.plan if self.entered else None, self.switched_to)
            if plan is None:
                return self._let_go()
            try:
                ended = self._generation(plan)
            except RuntimeError as failure:
                ended = self._recover(failure)
            if ended.how in (Ended.FINISHED, Ended.DRAINED, Ended.FAILED):
                return self._finish(ended)

    def _generation(self, plan: Plan) -> LoopEnd:
        """Enter a plan and train until it ends."""
        started = time.perf_counter()
        self.clock.enter("reshape")
        entered = self.entrance.enter(plan, self.entered is not None, self.state, self.calendar, self.clock.enter, self.caching)
        self.switched_to = None
        if entered is None:
            # A leaver has given its state away: it is a warm spare now, until it is told to end.
            self._close(self.entered.generation if self.entered else None)
            self.entered = None
            self.clock.enter("spare")
            return LoopEnd(Ended.SWITCHED)
        self.closing = self.entered.generation if self.entered is not None else None
        self.entered = entered
        self.client.entered(plan.generation)
        self.client.entered_in_background(plan.generation, time.perf_counter() - started, self.state.step)
        units, shape = plan.placement.units_of(self.identity.worker_id), plan.placement.shape
        log.info(
            "entered %s at step %d: pp %d dp %d, units %s",
            plan.generation,
            self.state.step,
            shape.pp_degree,
            shape.dp_degree,
            units,
        )
        loop = TrainingLoop(entered.generation, plan, self.state, self.calendar, self.mailbox, self._hooks(entered))
        ended = loop.run()
        self.switched_to = ended.plan
        return ended

    def _hooks(self, entered: Entered) -> LoopHooks:
        return LoopHooks(
            checkpoint=lambda before_freeze: self.saving.checkpoint(entered, self.state, before_freeze),
            roll_back=lambda decision: self._roll_back(entered, decision),
            stable=self._stable,
            applied=lambda decision: self._applied(entered, decision),
            report=self._report,
            parts=self.clock.take_parts,
            cache_counts=self.caching.take_counts,
            first_vote=lambda: self._close(self.closing),
        )

    def _stable(self) -> None:
        self.saving.stable()
        if self._is_sender():
            self.client.wake()

    def _applied(self, entered: Entered, decision: Decision) -> None:
        """The freeze point moved: stage, schedule and optimizer are rebuilt in place; the reshape may follow."""
        self.clock.enter("freeze")
        self.entrance.extend_chain(self.state, decision.freeze_point)
        entered.generation.freeze_to(decision.freeze_point, tuple(self.state.codec_chain), self.caching.round_trip)
        self.caching.connect(entered.generation, self.state)

    def _roll_back(self, entered: Entered, decision: Decision) -> None:
        """Weights, moments, cursor and freeze point go back together, in place (PROTOCOLS 6)."""
        started = time.perf_counter()
        self.clock.enter("rollback")
        restored = self.saving.restore(entered, decision.rollback_to_step)
        restored.open_lineage(decision, self.calendar)
        restored.vote_generation = entered.plan.generation
        self.state.take(restored, keep_unacknowledged=True)
        self.context.holdings.settle(entered.plan.needs(self.identity.worker_id), self.state.tag)
        entered.generation.rewind(self.state.data_origin)
        entered.generation.freeze_to(decision.freeze_point, tuple(self.state.codec_chain), self.caching.round_trip)
        self.caching.connect(entered.generation, self.state)
        # From here on the newest manifest is the new lineage's (PROTOCOLS 6).
        self.saving.checkpoint(entered, self.state, before_freeze=True)
        self._report("guard", f"rolled back to step {restored.step}: {decision.reason}", time.perf_counter() - started)

    def _recover(self, failure: RuntimeError) -> LoopEnd:
        """A collective failed. A report is a promise: no vote result of this generation is taken afterwards (PROTOCOLS 4)."""
        text = "".join(traceback.format_exception(failure))
        log.warning("generation failed: %s", failure)
        traceback.clear_frames(failure.__traceback__)
        failure.__traceback__ = None
        plan = self.entered.plan if self.entered else None
        units = plan.placement.units_of(self.identity.worker_id) if plan else []
        for generation in (self.entered.generation if self.entered else None, self.closing):
            if generation is not None:
                generation.abandon(keep_prepared=False)
        self.entered = self.closing = None
        self.clock.enter("recovery")
        request = control_pb2.ReportRecoveryRequest(
            worker_id=self.identity.worker_id,
            units=[control_pb2.UnitReport(unit=unit, intact=True) for unit in units],
            error=text[-4000:],
        )
        if plan is not None:
            request.generation.CopyFrom(to_message(plan.generation, plan_pb2.GenerationId))
        self.client.report_recovery(request)
        return LoopEnd(Ended.SWITCHED)

    def _close(self, generation: Generation | None) -> None:
        if generation is not None:
            generation.close()
        self.closing = None

    # ---- the end

    def _finish(self, ended: LoopEnd) -> int:
        """Score, digest, checkpoint, model; the outcome goes to the controller with what is unacknowledged."""
        assert self.entered is not None
        generation, context = self.entered.generation, self.context
        self.clock.enter("finish")
        folder = self.saving.checkpoint(self.entered, self.state, before_freeze=False)
        self.saving.stable()
        metrics = final_score(generation) if ended.how is Ended.FINISHED else {}
        digest = world_digest(generation)
        self.saving.finish()
        if self._is_sender():
            unwritten = self.saving.why_not_written(folder)
            published = not unwritten and wait_for_manifest(folder)
            if ended.how is Ended.FINISHED and published:
                unwritten = save_final_model(context, folder, self.identity.run_dir / "model")
            status = {Ended.FINISHED: "completed", Ended.DRAINED: "drained", Ended.FAILED: "failed"}[ended.how]
            message = ended.message
            if status != "failed" and (unwritten or not published):
                # Without its weights a run is not completed, and cannot be gone on with from where it drained.
                status, message = "failed", unwritten_text(self.state.step, folder, unwritten)
            place = str(folder.relative_to(self.saving.root)) if published else ""
            self.client.outcome(make_outcome(status, context, self.state, digest, metrics, place, message))
        while not self.mailbox.end:
            self.mailbox.wait(0.2)
        generation.close()
        return EXIT_DONE

    def _let_go(self) -> int:
        """Told to end, or no longer wanted."""
        if self.mailbox.lost:
            log.error("refused: %s", self.mailbox.lost)
            return EXIT_REFUSED
        log.info("ended: %s", self.mailbox.end)
        return EXIT_DONE

    def leave(self, reason: str) -> None:
        """SIGTERM: ask the controller for a plan without this worker; the run goes on (PROTOCOLS 10)."""
        threading.Thread(target=self.client.leave, args=(reason, False), daemon=True).start()

    # ---- what other threads ask

    def _is_sender(self) -> bool:
        entered = self.entered
        return entered is not None and entered.index == 0

    def _outgoing(self):
        return self.state.outgoing() if self._is_sender() else ([], [])

    def _acknowledge(self, lineage: int, step: int | None, interval: int | None) -> None:
        self.state.forget(lineage, step, interval)

    def _report(self, kind: str, reason: str, seconds: float, **detail: str) -> None:
        if self._is_sender():
            state = self.state
            self.client.add_event(
                control_pb2.RunEvent(
                    kind=kind, step=state.step, lineage=state.lineage, reason=reason, seconds=seconds, detail=detail
                )
            )

    def _heartbeat(self) -> control_pb2.HeartbeatRequest:
        entered = self.entered
        return heartbeat(
            self.identity.worker_id,
            self.state.step,
            self.clock,
            entered.plan.generation if entered is not None else None,
            entered.link if entered is not None else None,
            self.caching.profile(),
        )


def main() -> int:
    """Entry point of a worker process (forked by the preload process, or started by itself)."""
    identity = Identity.from_environment()
    logging.basicConfig(
        level=os.environ.get("FROSTLINE_LOG_LEVEL", "INFO").upper(),
        format=f"%(asctime)s {identity.pod_name} %(levelname)s %(name)s %(message)s",
        stream=sys.stdout,
        force=True,
    )
    worker = None
    try:
        worker = Worker(identity, load_job(identity.run_dir / "job.yaml"))
        signal.signal(signal.SIGTERM, lambda *_: worker.leave("SIGTERM"))
        return worker.run()
    except Refused as refusal:
        log.error("refused: %s", refusal)
        return EXIT_REFUSED
    except ValueError as mistake:
        log.error("%s", mistake)
        _tell(identity, worker, str(mistake), user_mistake=True)
        return EXIT_USER
    except Exception as fault:
        log.exception("fault")
        _tell(identity, worker, "".join(traceback.format_exception(fault))[-4000:], user_mistake=False)
        return EXIT_FAULT


def _tell(identity: Identity, worker: Worker | None, error: str, user_mistake: bool) -> None:
    """The controller hears of the end even where the worker never registered."""
    client = getattr(worker, "client", None) or ControlClient(
        identity.controller_file,
        identity.token,
        control_pb2.RegisterRequest(worker_id=identity.worker_id, pod_name=identity.pod_name),
        Mailbox(identity.worker_id),
        control_pb2.HeartbeatRequest,
        lambda lineage, step, interval: None,
    )
    try:
        client.leave("ended", ended=True, error=error, user_mistake=user_mistake)
    except (TimeoutError, Refused) as unheard:
        log.warning("the controller did not hear of it: %s", unheard)


if __name__ == "__main__":
    sys.exit(main())
