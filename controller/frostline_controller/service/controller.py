"""The reconciler: one task that gathers what arrived by RPC and from the cluster, and acts on it in a fixed order."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from frostline_contract.plan import Decision
from frostline_controller.checkpoints import CheckpointsGone
from frostline_controller.membership import GONE, LEAVING, Worker
from frostline_controller.planning import check_shapes
from frostline_controller.service.adapting import Adapting
from frostline_controller.service.cache_news import CacheNews
from frostline_controller.service.choosing import Choosing
from frostline_controller.service.commands import Commands
from frostline_controller.service.devices import Devices
from frostline_controller.service.ending import Ending
from frostline_controller.service.entering import Entering
from frostline_controller.service.faults import PlannedFaults
from frostline_controller.service.following import Following, Offers
from frostline_controller.service.freezing import Deciding
from frostline_controller.service.profiling import HandedOut, ProfileFile
from frostline_controller.service.publishing import Publishing
from frostline_controller.service.reshaping import Reshaping, plan_line
from frostline_controller.service.run import Run
from frostline_controller.service.sizing import Sizing
from frostline_controller.service.start_failures import StartFailures
from frostline_controller.service.starting import Starting
from frostline_controller.service.watching import Watching
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)

CLUSTER_READ_SECONDS = 0.5
COALESCE_SECONDS, COALESCE_SECONDS_MAX = 0.005, 0.05
"""Least time between two rounds, so that a thousand messages a second do not become as many rounds."""
FLUSH_SECONDS = 0.1
"""A decision is on its way to all before the planner, in a thread, takes its share of the processor; waited for no longer."""
ROUNDS_SHARE = 0.25
"""Of the event loop's time at most so much goes to rounds that messages ask for: the rest answers workers."""
ABSENT_SECONDS = 2.0
"""A longer time between two rounds means that this process stood still (a frozen node): it could hear nobody."""
TICK_SECONDS = 0.25
"""Longest time between two rounds: deadlines are judged at least this often."""


class Controller:
    """All parts of one leading controller, and the loop that runs them."""

    def __init__(
        self, run: Run, replayed: tuple[Decision, ...] | None, checkpoint_root: Path, offers: Offers | None = None
    ) -> None:
        facts, store, outbox, pods = run.facts, run.store, run.outbox, run.pods
        self.run, self._facts, self._store, self._outbox, self._pods = run, facts, store, outbox, pods
        self.checkpoint_root = checkpoint_root
        self.faults = PlannedFaults(facts, store, outbox, run.backend)
        self.choosing = Choosing(facts)
        self.reshaping = Reshaping(facts, store, outbox, self.faults, self.choosing)
        self.starting = Starting(facts, store, outbox, self.faults, self.choosing, checkpoint_root)
        self.entering = Entering(
            facts, store, outbox, pods, self.faults, choosing=self.choosing, starting=self.starting, reshaping=self.reshaping
        )
        self.deciding = Deciding(facts, store, outbox, replayed)
        self.adapting = Adapting(facts, store, self.choosing, self.reshaping)
        self.following = Following(facts, store, outbox, self.adapting, offers)
        self.ending = Ending(facts, store, outbox, pods, checkpoint_root)
        self.sizing = Sizing(facts, store, outbox, pods, choosing=self.choosing, adapting=self.adapting, reshaping=self.reshaping)
        self.commands = Commands(facts, store, outbox, self.sizing, self.adapting, self.ending)
        self.watching = Watching(facts, outbox, self.entering, self.adapting)
        self.start_failures = StartFailures(facts, outbox, self.ending)
        self.devices = Devices(facts, store, outbox)
        self.profiling = ProfileFile(facts, store)
        self.handed_out = HandedOut(facts)
        self.publishing, self.cache_news = Publishing(facts, store, run.backend), CacheNews(facts, store, outbox)
        self._stopped = False
        self._cluster_read_at = -1.0
        self._round_at = facts.clock()
        self._departures: list[tuple[str, str, str]] = []
        self._own_events: list[pb.RunEvent] = []
        self._decided = facts.state.decisions[-1:]

    async def start(self) -> None:
        """Take over what was found: complete plans.jsonl, say when the run began, ask for pods. After a failure: again."""
        facts, store = self._facts, self._store
        if not facts.state.started_at:
            await self.ending.reopen()  # the checkpoint root may have been another run's
            await store.commit(started_at=time.time())
        await self.deciding.restore()
        if not facts.ended:
            self.note_identity()
        if await self.ending.take_over():
            return
        if facts.current is not None:
            await store.plans.append([plan_line(facts.current, facts.current.start_step + 1)])
        await self._unless_gone(self.entering.start())
        await self.sizing.start_pods()
        log.info("controller leads incarnation=%s state=%s generation=%s", facts.state.incarnation, facts.state.state,
                 facts.current.generation if facts.current else "none")  # fmt: skip

    async def serve(self) -> None:
        """Run until `stop`. Raises Conflict where another controller has taken over."""
        while not self._stopped:
            self._facts.wake.clear()
            self._facts.hurry.clear()
            began = time.thread_time()
            try:
                await self._round()
                await self._store.events.flush()
            except OSError as error:
                log.error("the state cannot be written, trying again error=%s", error)
                await asyncio.sleep(TICK_SECONDS)
            except ValueError as error:  # what the job asks for cannot be done: the text says what and why
                self._fail_by(error)
            pause = (time.thread_time() - began) / ROUNDS_SHARE
            await _set_within(self._facts.hurry, min(max(pause, COALESCE_SECONDS), COALESCE_SECONDS_MAX))
            await _set_within(self._facts.wake, TICK_SECONDS)

    def _fail_by(self, error: ValueError) -> None:
        """Most say what is wrong with the job. What cannot be read, of a file or a message, is no mistake of the user's."""
        unreadable = isinstance(error, (ValidationError, json.JSONDecodeError, UnicodeError))
        if unreadable:
            log.error("a round failed on something that cannot be read", exc_info=error)
        self.ending.fail(f"{type(error).__name__}: {error}" if unreadable else str(error), user_mistake=not unreadable)

    def stop(self) -> None:
        """End `serve` after the round that is under way: what it is writing is written whole."""
        self._stopped = True
        self._facts.wake.set()

    def note_departure(self, worker_id: str, why: str, kind: str) -> None:
        """A worker wants to go (kind "leaving"), its process has ended (kind "ended"), or it is out of reach (kind "gone")."""
        if (worker_id, why, kind) not in self._departures:
            self._departures.append((worker_id, why, kind))
        self._facts.wake.set()

    def note_event(self, event: pb.RunEvent) -> None:
        """Something happened here, in a call; the reconciler writes it."""
        self._own_events.append(event)
        self._facts.wake.set()

    async def take_worker_event(self, event: pb.RunEvent) -> None:
        """Durable when this returns, so that it may be acknowledged. Raises OSError."""
        if event.kind == "hang":  # it becomes a part of the verdict's event
            self.watching.note_stack(event)
        elif await self._outbox.worker_event(event) and event.kind == "decision_void":
            self.deciding.note_void(event)
        self._facts.wake.set()

    def note_identity(self) -> None:
        """The first worker has said what the run is: a wrong policy, rail or shape ends it now, not when it is first used."""
        try:
            if self._facts.identity is not None and self._facts.current is None:
                check_shapes(self._facts.job, self._facts.identity.num_units)
            self.deciding.check()
        except ValueError as error:
            self.ending.fail(str(error), user_mistake=True)

    def accept_numerics(self, request: pb.RegisterRequest) -> None:
        """The user has said that bits may change here (resume --accept-numerics): the newcomer's probe and initial weights are
        the run's now."""
        facts = self._facts
        assert facts.identity is not None
        was = facts.identity
        names = ("probe_digest", "probe_detail", "place_dependence", "weights_digest")
        now = was.model_copy(update={name: getattr(request, name) for name in names})
        facts.adopt_identity(now)
        facts.accept_numerics = False
        before, after = (f"{one.probe_digest[:12]} ({one.probe_detail})" for one in (was, now))
        reason = f"numerics changed and accepted: probe {before} -> {after}"
        if was.weights_digest and now.weights_digest != was.weights_digest:
            reason += f", initial weights {was.weights_digest[:12]} -> {now.weights_digest[:12]}"
        self.note_event(pb.RunEvent(kind="command", step=facts.step, lineage=facts.state.lineage, reason=reason))

    async def note_joined(self, worker: Worker) -> None:
        """A worker registered that was not there before."""
        facts = self._facts
        log.info("worker joined worker=%s pod=%s node=%s", worker.worker_id, worker.pod_name, worker.failure_domain)
        if facts.current is not None and worker.worker_id not in facts.current.placement.global_ranks:
            self.adapting.note_joined(f"{worker.pod_name} joined")
        facts.wake.set()

    async def _unless_gone(self, act: Coroutine[Any, Any, bool | None]) -> bool | None:
        """Where checkpoints are gone nothing is planned until they are back: told once by an event, and by the status."""
        try:
            return await act
        except CheckpointsGone as gone:
            if self._facts.message != str(gone):
                self._facts.message = str(gone)
                await self._outbox.event("cannot_start", str(gone))
            return True

    async def _round(self) -> None:
        facts, outbox = self._facts, self._outbox
        now = facts.clock()
        if now - self._round_at > ABSENT_SECONDS:
            facts.members.excuse(now - self._round_at)
        self._round_at = now
        await self._observe(now)
        await self._take_departures(now)
        await self._tell_own_events()
        await self.start_failures.advance()
        await self.devices.advance()
        if self.entering.crash_loop:
            self.ending.fail(self.entering.crash_loop, crash_loop=True)
        if await self.ending.settle(now):
            await self.commands.advance()
            return
        await self.commands.advance()
        await self.following.advance()
        await self.deciding.advance()
        if (newest := facts.state.decisions[-1:]) != self._decided:
            self._decided = newest
            await outbox.streams.flushed(FLUSH_SECONDS)
            self.adapting.ask(f"decision {newest[0].number}" if newest else "a decision was taken back")
        if not facts.state.between:
            await self.watching.advance(now)
        if await self._unless_gone(self.entering.advance(now)):
            self._forget_preparation()
        elif not self.ending.draining:
            if (plan := await self.reshaping.advance(now)) is not None:
                self._release_leavers(set(plan.placement.workers))
            await self.adapting.advance()
            await self.sizing.advance()
        if self.entering.just_entered:
            await self._settle_leavers()
            self.entering.just_entered = False
        await self.faults.advance()
        await self.cache_news.advance()
        await self.publishing.advance(now)

    async def _observe(self, now: float) -> None:
        """Read the cluster; workers of a pod that is no longer there are gone."""
        facts, pods = self._facts, self._pods
        if now - self._cluster_read_at < CLUSTER_READ_SECONDS and not self._pods.changed():
            return
        await pods.reread()
        self._cluster_read_at = now
        await self.profiling.advance()
        for worker in facts.members.without_pod(facts.cluster.uids, registered_before=now - 2 * CLUSTER_READ_SECONDS):
            self._departures.append((worker.worker_id, f"pod {worker.pod_name} is gone", "gone"))

    async def _take_departures(self, now: float) -> None:
        facts = self._facts
        for worker in facts.overdue(now):
            silence = f"no heartbeat for {facts.members.dead_after_seconds:g} s"
            self.note_departure(worker.worker_id, silence, "gone")
        members = facts.current.placement.global_ranks.keys() if facts.current else set()
        for worker in facts.members.unreachable(now, awaited=members):  # a spare or leaver is given up early
            self.note_departure(worker.worker_id, "its connection has closed", "gone")
        while self._departures:
            await self._take_departure(*self._departures[0])
            del self._departures[0]
        facts.members.forget_old(facts.current.placement.global_ranks.keys() if facts.current else set())

    async def _take_departure(self, worker_id: str, why: str, kind: str) -> None:
        facts = self._facts
        worker = facts.members.get(worker_id)
        if worker is None or (worker.presence == GONE and kind != "ended"):
            return
        member = facts.current is not None and worker_id in facts.current.placement.global_ranks
        if kind != "leaving":
            if not facts.members.remove(worker_id, why):
                return
            log.warning("worker gone worker=%s pod=%s step=%s reason=%r", worker_id, worker.pod_name, worker.step, why)
            if not member:
                self.adapting.ask(f"{worker.pod_name} is gone", "leave", patient=True)
            return
        facts.members.give_notice(worker)
        log.info("worker wants to leave worker=%s pod=%s reason=%r", worker_id, worker.pod_name, why)
        if not member or facts.ended or facts.state.between:
            self._release_leavers(set(facts.current.placement.workers) if facts.current and not facts.state.between else set())
        elif self.entering.recovery is None:
            await self._let_go(worker, why)

    async def _tell_own_events(self) -> None:
        while self._own_events:
            await self._outbox.worker_event(self._own_events[0])
            del self._own_events[0]

    async def _let_go(self, worker: Worker, why: str) -> None:
        """A member wants to leave: the others go on without it, or, where they are too few, all pause at a checkpoint."""
        facts = self._facts
        if len(facts.members.available()) >= facts.job.placement.min_workers:
            self.adapting.ask(f"{worker.pod_name} leaves: {why}", "leave")
        else:
            await self.ending.pause(f"too few workers stay: {why}")

    async def _settle_leavers(self) -> None:
        """All have entered after a failure: leavers that gave their state may exit, members that want to leave are let go."""
        assert self._facts.current is not None
        members = set(self._facts.current.placement.workers)
        self._release_leavers(members)
        for worker in [worker for worker in self._facts.members if worker.presence == LEAVING and worker.worker_id in members]:
            await self._let_go(worker, "it had asked to before the failure")

    def _release_leavers(self, members: set[str]) -> None:
        """A worker that asked to go, and is needed no more, may exit."""
        for worker in self._facts.members:
            if worker.presence == LEAVING and worker.worker_id not in members:
                self._outbox.streams.send(worker.worker_id, pb.WatchPlanResponse(end=pb.EndNotice(reason="it may leave")))

    def _forget_preparation(self) -> None:
        """A plan that is entered without a vote supersedes the prepared one."""
        if self._facts.state.prepared is None and self.reshaping.preparation is not None:
            self.reshaping.preparation = None
            self.adapting.ask("after the recovery")


async def _set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, or so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
