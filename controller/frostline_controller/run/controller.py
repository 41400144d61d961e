"""The parts of a leading controller, connected to each other, and the entry points of workers' calls. The reconciler drives
them."""

import logging
import time
from pathlib import Path

from frostline_contract.plan import Decision
from frostline_contract.worker_state import WorkerState
from frostline_controller.decisions.taker import DecisionTaker
from frostline_controller.ledger.keeping import Bookkeeping
from frostline_controller.members.departures import Departures
from frostline_controller.members.devices import Devices
from frostline_controller.members.entry import EntryWatch
from frostline_controller.members.hang_watch import HangWatch
from frostline_controller.members.membership import Worker
from frostline_controller.members.removal import Removals
from frostline_controller.members.silent_pods import SilentPods
from frostline_controller.members.start_failures import StartFailures
from frostline_controller.members.start_wait import StartWait
from frostline_controller.members.straggler_watch import StragglerWatch
from frostline_controller.planner.adapter import check_shapes
from frostline_controller.planner.choice import PlanChoice
from frostline_controller.planner.profiles import HandedOut, ProfileFile
from frostline_controller.recovery.driver import Failures
from frostline_controller.recovery.plans import StartingPlans, announce_gone
from frostline_controller.reshape.live_fields import LiveFields, Offers
from frostline_controller.reshape.pods import PodCount
from frostline_controller.reshape.triggers import ReshapeTriggers
from frostline_controller.reshape.two_phase import Reshaping
from frostline_controller.run.cache_news import CacheNews
from frostline_controller.run.checkpoints import CheckpointsGone
from frostline_controller.run.commands import Commands
from frostline_controller.run.drain import Drain
from frostline_controller.run.ending import Ending
from frostline_controller.run.first_plan import FirstPlan
from frostline_controller.run.memory_cap import MemoryCap
from frostline_controller.run.plan_log import plan_line
from frostline_controller.run.plug import NoPlug, RoundPlug
from frostline_controller.run.run import Run
from frostline_controller.run.settling import Settling
from frostline_controller.serving.progress import ProgressWriter
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)


class Controller:
    """All parts of one leading controller. RPC handlers reach the parts through it.

    Args:
        run: the parts that this controller is built from.
        replayed: decisions of another run that replace the job's policy; None: the policy decides.
        checkpoint_root: folder of the run's checkpoints.
        offers: the source of changed jobs; None where the job cannot change.
        plug: plug-in of the rounds; None: there is none.
    """

    def __init__(
        self, run: Run, replayed: tuple[Decision, ...] | None, checkpoint_root: Path, offers: Offers | None = None,
        plug: RoundPlug | None = None,
    ) -> None:  # fmt: skip
        facts, store, outbox, pods = run.facts, run.store, run.outbox, run.pods
        self.run, self._facts, self._store, self._outbox, self._pods = run, facts, store, outbox, pods
        self.checkpoint_root = checkpoint_root
        self.plug = plug or NoPlug()
        self.choosing = PlanChoice(facts)
        self.reshaping = Reshaping(facts, store, outbox, self.plug, self.choosing)
        self.starting = StartingPlans(facts, store, outbox, self.plug, self.choosing, checkpoint_root)
        self.entry, self.removals = EntryWatch(facts, store, outbox), Removals(facts, store, pods)
        self.failures = Failures(
            facts, store, outbox, self.plug, choosing=self.choosing, starting=self.starting, reshaping=self.reshaping,
            entry=self.entry, removals=self.removals,
        )  # fmt: skip
        wait = StartWait(facts, self.choosing)
        self.settling = Settling(facts, store, outbox)
        self.first_plan = FirstPlan(facts, wait=wait, starting=self.starting, entry=self.entry)
        self.deciding = DecisionTaker(facts, store, outbox, replayed)
        self.adapting = ReshapeTriggers(facts, store, self.choosing, self.reshaping)
        self.following = LiveFields(facts, store, outbox, self.adapting, offers)
        self.drain, self.bookkeeping = Drain(facts, store, outbox), Bookkeeping(facts, store)
        self.ending = Ending(facts, store, outbox, pods, self.drain, checkpoint_root, self.bookkeeping)
        self.sizing = PodCount(
            facts, store, outbox, pods, choosing=self.choosing, adapting=self.adapting, reshaping=self.reshaping
        )
        self.commands = Commands(facts, store, outbox, self.sizing, self.adapting, self.ending)
        self.hang_watch = HangWatch(facts, outbox, self.failures, self.removals, self.entry)
        self.silent_pods = SilentPods(facts, self.removals)
        self.straggler_watch = StragglerWatch(facts, outbox, self.adapting)
        self.departures = Departures(facts, outbox, failures=self.failures, adapting=self.adapting, drain=self.drain)
        self.start_failures = StartFailures(facts, outbox, self.ending)
        self.devices, self.memory_cap = Devices(facts, store, outbox), MemoryCap(facts, store, outbox)
        self.profiling = ProfileFile(facts, store)
        self.handed_out = HandedOut(facts)
        self.publishing, self.cache_news = ProgressWriter(facts, store, run.backend), CacheNews(facts, store, outbox)

    async def start(self) -> None:
        """Take over the durable state: complete plans.jsonl, record the run's start, request pods. After a failure, call it
        again."""
        facts, store = self._facts, self._store
        if not facts.state.started_at:
            await self.ending.reopen()  # the checkpoint root may have been another run's
            await store.commit(started_at=time.time())
        await self.settling.start()
        await self.deciding.restore()
        if not facts.ended:
            self.note_identity()
        if await self.ending.take_over():
            return
        if facts.current is not None:
            await store.plans.append([plan_line(facts.current, facts.current.start_step + 1)])
        try:
            await self.starting.finish_epoch()
            self.entry.restore()
            await self.reshaping.restore()
        except CheckpointsGone as gone:
            await announce_gone(facts, self._outbox, gone)
        await self.sizing.start_pods()
        log.info("controller leads incarnation=%s state=%s generation=%s", facts.state.incarnation, facts.state.state,
                 facts.current.generation if facts.current else "none")  # fmt: skip

    async def take_worker_event(self, event: pb.RunEvent) -> None:
        """Write a worker's event; it is durable on return, so that it may be acknowledged. Raises OSError."""
        if event.kind == "hang":  # becomes a part of the verdict's event
            self.hang_watch.note_stack(event)
        elif await self._outbox.worker_event(event) and event.kind == "decision_void":
            self.deciding.note_void(event)
        self._facts.wake.set()

    def note_identity(self) -> None:
        """Check the job against the run's identity, so that a wrong policy, rail or shape ends the run now and not at its first
        use."""
        try:
            if self._facts.identity is not None and self._facts.current is None:
                check_shapes(self._facts.job, self._facts.identity.num_units)
            self.deciding.check()
        except ValueError as error:
            self.ending.fail(str(error), user_mistake=True)

    async def note_joined(self, worker: Worker, leaving: str = "") -> None:
        """Record that a new worker has registered.

        Args:
            worker: the worker.
            leaving: why the worker wants to leave, as it may have told an earlier controller; empty: it does not.
        """
        facts = self._facts
        log.info("worker joined worker=%s pod=%s node=%s", worker.worker_id, worker.pod_name, worker.failure_domain)
        if facts.current is not None and worker.worker_id not in facts.current.placement.global_ranks:
            self.adapting.note_joined(f"{worker.pod_name} joined")
        if leaving:
            self.departures.note(worker.worker_id, leaving, WorkerState.LEAVING)
        facts.wake.set()

    def note_answering(self, worker: Worker) -> None:
        """Record that a worker has left the generation that is over, although no plan counted on it: plans may name it again."""
        self.adapting.note_joined(f"{worker.pod_name} answers again")
