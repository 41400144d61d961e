"""A worker's main loop: join the run, enter each generation that names the worker, recover from failures, end when told to.

setup -> register -> (prepare a plan -> enter it -> train until it ends)* -> result
                          ^------ report what is left <- failure or fence -'
"""

import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path

from frostline_contract.exit_codes import DONE, REFUSED
from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import Job
from frostline_contract.mesh import in_words
from frostline_contract.phases import Phase
from frostline_contract.plan import GenerationId, Plan
from frostline_contract.statistics import MemoryUse, WorkerProfile
from frostline_proto.v1 import control_pb2
from frostline_trainer.checkpoints.saving import Saving
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.mailbox import Fenced, Mailbox
from frostline_trainer.generations.between_steps import BetweenSteps
from frostline_trainer.generations.entering import Entered, Entrance
from frostline_trainer.generations.forming import NotFormed, Preparation
from frostline_trainer.generations.messages import heartbeat, make_registration, memory_use
from frostline_trainer.generations.own_store import OwnStore
from frostline_trainer.generations.recovering import Recovery, release_frames
from frostline_trainer.generations.run_end import Conclusion
from frostline_trainer.prefix.cache_use import CacheUse
from frostline_trainer.process.identity import Identity
from frostline_trainer.process.plug import Parts, plug_of
from frostline_trainer.process.setup import build_context
from frostline_trainer.process.sick_device import end_if_sick, end_if_silent
from frostline_trainer.process.stacks import stack_event
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.due import Due, Ended, LoopEnd
from frostline_trainer.step.link import Links
from frostline_trainer.step.loop import TrainingLoop
from frostline_trainer.step.phases import PhaseClock
from frostline_trainer.step.run_state import RunState

log = logging.getLogger(__name__)


class Worker:
    """One worker. State that outlives a generation is in `self`, state of one generation in an `Entered`.

    Args:
        identity: the worker's ids and addresses.
        job: the run's job.
        profiles: the profiles that the run has measured, one for each kind of device.
    """

    def __init__(self, identity: Identity, job: Job, profiles: Sequence[WorkerProfile] = ()) -> None:
        self.identity, self.job, self.profiles = identity, job, profiles
        self.mailbox = Mailbox(identity.worker_id)
        self.clock = PhaseClock()
        self.state = RunState()
        self.plug = plug_of(os.environ, job)
        self.entered: Entered | None = None
        self.loop: TrainingLoop | None = None
        self.client: ControlClient | None = None

    def run(self) -> int:
        """Join the run and train until it ends. Returns the process's exit status (`frostline_contract.exit_codes`)."""
        self.context = self.build()
        self.context.plug = self.plug
        self.clock.trail = self.context.trail
        self.plug.attach(Parts(self.identity, self.job, self.context, self.state, self.mailbox.plans, self.clock))
        self.store = OwnStore(self.identity.host)
        feed_steps = self.context.order(1).steps_per_epoch
        self.calendar = DecisionCalendar(
            self.job.interval_steps(feed_steps), self.job.decisions.lag_steps, self.job.total_steps(feed_steps)
        )
        client = self._connect(make_registration(self.identity, self.context, self.store.port, feed_steps, self.profiles))
        response = client.register()
        self.clock.admitted()
        self._build_parts(client, response)
        client.start(self._outgoing)
        self.preparation.start()
        self.store.watch(self._replace_store)
        if self.identity.joined_file is not None:
            self.identity.joined_file.touch()
        try:
            return self._generations()
        finally:
            self.store.stop()
            self.caching.close()
            client.stop()
            self.preparation.stop()

    def build(self) -> RunContext:
        """Build the job's data, model and numerics."""
        return build_context(self.job)

    def _connect(self, registration: control_pb2.RegisterRequest) -> ControlClient:
        client = ControlClient(
            self.identity.controller,
            self.identity.token,
            registration,
            self.mailbox,
            self._heartbeat,
            self.state.forget,
            self.plug,
        )
        client.on_fence = self._interrupt
        client.on_lost = lambda: self._interrupt(self.mailbox.plans.newest)
        client.on_stack = lambda reason: client.add_event(
            stack_event(self.identity.worker_id, self.state.step, self.state.lineage, reason)
        )
        self.client = client
        return client

    def _build_parts(self, client: ControlClient, response: control_pb2.RegisterResponse) -> None:
        """Build the parts that outlive all generations."""
        identity, context, box = self.identity, self.context, self.mailbox
        self.caching = CacheUse(context, response.cache_address, identity.token, identity.worker_id, identity.run_dir)
        self.saving = Saving(
            context, Path(response.checkpoint_root), client, on_fenced=self._later_epoch, before=self.plug.before_file
        )
        self.recovery = Recovery(identity.worker_id, context, self.state, box, client)
        self.entrance = Entrance(identity.worker_id, context, self.state, self.saving.root)
        self.preparation = Preparation(context, identity, box, client, lambda: self.state.step)
        self.preparation.on_stand_by = self._stand_by
        self.between_steps = BetweenSteps(
            context, self.state, self.calendar, box, client, self.saving, self.entrance, self.caching, self.preparation
        )
        self.conclusion = Conclusion(context, self.state, self.saving, client, box, identity.run_dir, self.clock)

    # ---- the life between plans

    def _generations(self) -> int:
        while True:
            try:
                plan = self.preparation.next_plan()
                if plan is None:
                    return self._end_unfinished()
                ended = self._generation(plan)
                if ended.how is not Ended.SWITCHED:
                    assert self.entered is not None
                    self.conclusion.conclude(self.entered, ended)
                    return DONE
            except RuntimeError as failure:
                self._recover(failure)

    def _generation(self, plan: Plan) -> LoopEnd:
        """Enter a plan and train until it ends."""
        started, plans = time.perf_counter(), self.mailbox.plans
        was_member = plans.running is not None
        plans.entering(plan.generation)
        self.clock.enter(Phase.RESHAPE)
        groups = self.preparation.groups_of(plan)
        self._take_job(self.preparation.job_of(plan))
        if was_member:
            self.preparation.announce_switch(plan, self.state.step)
        if self.entered is not None:  # after a switch: every step of the previous generation is committed
            self.entered.generation.give_back()
        groups.connect(self.entered.generation.groups if self.entered is not None else None)
        entered = self.entrance.enter(plan, groups, self.recovery, self.clock, self.caching)
        self.entered, self.loop = entered, None
        plans.entered(plan.generation, as_member=entered is not None)
        if entered is None:
            # A leaver has sent its state. It keeps state and groups until it enters another plan or is told to end.
            self.caching.leave()
            self.clock.enter(Phase.SPARE)
            return LoopEnd(Ended.SWITCHED)
        self._report_entered(entered, time.perf_counter() - started)
        self.loop = TrainingLoop(
            entered.generation, plan, self.state, self.calendar, self.mailbox, self.clock, self.caching, self.recovery.seen
        )
        while not isinstance(due := self.loop.advance(), LoopEnd):
            self._act(entered, due)
        if due.plan is not None:
            plans.switched(due.plan.generation)
            self.recovery.switched(due.plan)
        return due

    def _stand_by(self) -> None:
        """Called every now and then while the newest plan does not name this worker."""
        self.clock.stand_by()
        self.caching.leave()

    def _act(self, entered: Entered, due: Due) -> None:
        """Carry out what is due between two steps."""
        self.between_steps.do(entered, due)

    def _take_job(self, job: Job) -> None:
        """Follow the job of the new generation; its live fields may differ from the previous one's (docs/protocols.md 9)."""
        if job is not self.context.job:
            self.context.job = self.job = job
            self.saving.follow(job)

    def _report_entered(self, entered: Entered, seconds: float) -> None:
        assert self.client is not None
        plan = entered.plan
        self.clock.new_generation()
        self.client.entered(plan.generation)
        entered.generation.tracing.send = self.client.add_event
        self.client.entered_in_background(plan.generation, seconds, self.state.step)
        units, shape = plan.placement.units_of(self.identity.worker_id), in_words(plan.placement.shape.degrees)
        log.info("entered %s at step %d: %s, units %s", plan.generation, self.state.step, shape, units)

    # ---- failure

    def _interrupt(self, generation: GenerationId) -> None:
        """End every wait of the training thread in generations up to this one."""
        self.preparation.interrupt(generation)

    def _replace_store(self, old_port: int, port: int) -> bool:
        """Replace this worker's dead store: report the new port to the controller, and end all waits at the old one."""
        assert self.client is not None
        acknowledged = self.client.send_store_port(port)
        if acknowledged:
            self.preparation.abandon_store(self.identity.host, old_port)
        return acknowledged

    def _later_epoch(self, run_epoch: int) -> None:
        """Stop as after a fence, because the checkpoint writer has found a later run epoch on disk (docs/protocols.md 5.5).

        Only a member of a generation of an older epoch stops; a worker that is in the new epoch or waits for a plan goes on.
        """
        plan = self.mailbox.plans.running
        if plan is not None and plan.run_epoch < run_epoch:
            self.mailbox.plans.put_fence(plan.generation, f"run epoch {run_epoch} has begun")
            self._interrupt(plan.generation)

    def _recover(self, failure: RuntimeError) -> None:
        """Drop all groups, keep the gradients of a prepared step, and report. A report is a promise (docs/protocols.md 4.1)."""
        running = self.mailbox.plans.running
        log.warning("generation %s is over: %s", running.generation if running is not None else None, failure)
        end_if_sick(failure)
        newest_received = self.mailbox.plans.promise(failure.until if isinstance(failure, (Fenced, NotFormed)) else None)
        self.preparation.drop(newest_received)
        end_if_silent(self.context)  # a worker whose device does not answer is still in a step and must not report
        try:
            self.clock.enter(Phase.RECOVERY)
        except RuntimeError as another:
            log.warning("and in the recovery: %s", another)
            end_if_sick(another)
        if self.loop is not None:
            self.recovery.take_over(self.loop)
        self.entered = self.loop = None
        self.caching.take_counts()  # drops the counts of a step that has no record
        self.saving.abandon(self.recovery.seen_step)
        self.recovery.report(failure, newest_received)
        release_frames(failure)

    # ---- the end

    def _end_unfinished(self) -> int:
        """End before the run's end, because the controller has told this worker to, or has refused it."""
        if self.mailbox.lost:
            log.error("refused: %s", self.mailbox.lost)
            return REFUSED
        log.info("ended: %s", self.mailbox.end)
        # Checkpoints of steps that are certainly committed are published; the remaining members handle the others.
        self.saving.abandon(self.recovery.seen_step)
        self.saving.finish()
        return DONE

    def leave(self, reason: str) -> None:
        """Answer SIGTERM: ask the controller for a plan without this worker, with which the run continues (protocols.md 10.2)."""
        if self.client is None or self.client.response is None:
            # Not registered yet, so no plan names it.
            os._exit(DONE)
        self.client.leave_in_background(reason)

    # ---- what other threads ask

    def _outgoing(self):
        entered = self.entered
        return self.state.outgoing() if entered is not None and entered.is_sender else ([], [])

    def _memory_use(self, entered: Entered) -> MemoryUse:
        generation = entered.generation
        return memory_use(self.context, generation.groups, generation.weighing.tensor_bytes)

    def _heartbeat(self) -> control_pb2.HeartbeatRequest:
        entered, loop = self.entered, self.loop
        return heartbeat(
            self.identity.worker_id,
            self.state.step,
            self.clock,
            entered.plan.generation if entered is not None else None,
            entered.link if entered is not None else Links(),
            self.caching.profile(),
            loop.uncovered if loop is not None else (),
            self._memory_use(entered) if entered is not None else None,
        )
