"""Departures of workers: a worker asks to leave, its process ends, its pod disappears, or its heartbeats stop."""

import logging

from frostline_contract.worker_state import WorkerState
from frostline_controller.members.membership import GONE, LEAVING, Worker
from frostline_controller.recovery.driver import Failures
from frostline_controller.reshape.triggers import ReshapeTriggers
from frostline_controller.run.drain import Drain
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)


class Departures:
    """Handles departures, one after the other.

    The loss of a *member* is a failure of its generation, which `Failures` handles. This class handles all others: spare workers,
    leavers, and members that ask to leave.

    Args:
        facts, outbox: the run's.
        failures: says whether a failure is being answered; until it is, no member is let go.
        adapting: takes the requests for a placement without a leaving worker.
        drain: pauses the run at a checkpoint where too few workers would stay.
    """

    def __init__(self, facts: RunFacts, outbox: Outbox, *, failures: Failures, adapting: ReshapeTriggers, drain: Drain) -> None:
        self._facts, self._outbox = facts, outbox
        self._failures, self._adapting, self._drain = failures, adapting, drain
        self._received: list[tuple[str, str, WorkerState]] = []
        self._waits_for_members = False  # whether a member that asked to go waits until all members are back
        self._kept_for_prepared = False  # whether a worker that asked to go is kept, since the prepared plan names it

    def note(self, worker_id: str, why: str, kind: WorkerState) -> None:
        """Note a departure.

        Args:
            worker_id: the worker that departs.
            why: the reason, in words.
            kind: LEAVING (the worker asks to go), ENDED (its process has ended) or GONE (it is out of reach).
        """
        if (worker_id, why, kind) not in self._received:
            self._received.append((worker_id, why, kind))
        self._facts.wake.set()

    def note_lost_pods(self, registered_before: float) -> None:
        """Note the workers whose pods the cluster no longer has, after the cluster was read.

        Args:
            registered_before: by the run's clock. The pod of a worker that registered later may be newer than the reading.
        """
        for worker in self._facts.members.without_pod(self._facts.cluster.uids, registered_before=registered_before):
            self._received.append((worker.worker_id, f"pod {worker.pod_name} is gone", GONE))

    async def advance(self, now: float) -> None:
        """Note the workers that have been silent for too long, and handle all noted departures."""
        facts = self._facts
        for worker in facts.overdue(now):
            self.note(worker.worker_id, f"no heartbeat for {facts.members.dead_after_seconds:g} s", GONE)
        members = self._members()
        for worker in facts.members.unreachable(now, awaited=members):  # a spare or leaver counts as lost early
            self.note(worker.worker_id, "its connection has closed", GONE)
        while self._received:
            await self._take_departure(*self._received[0])
            del self._received[0]
        if self._waits_for_members and not facts.awaited():
            self._waits_for_members = False
            if self._failures.recovery is None and not (facts.ended or facts.state.between):
                await self.settle()
        if self._kept_for_prepared and facts.state.prepared is None:
            self._kept_for_prepared = False
            self.release(self._members())
        facts.members.forget_old(self._members())

    async def _take_departure(self, worker_id: str, why: str, kind: WorkerState) -> None:
        facts = self._facts
        worker = facts.members.get(worker_id)
        if worker is None or (worker.presence == GONE and kind != WorkerState.ENDED):
            return
        member = worker_id in self._members()
        if kind != LEAVING:
            if not facts.members.remove(worker_id, why):
                return
            log.warning("worker gone worker=%s pod=%s step=%s reason=%r", worker_id, worker.pod_name, worker.step, why)
            if not member:
                self._adapting.ask(f"{worker.pod_name} is gone", "leave", patient=True)
            return
        facts.members.give_notice(worker)
        log.info("worker wants to leave worker=%s pod=%s reason=%r", worker_id, worker.pod_name, why)
        if facts.ended or facts.state.between:
            self.release(set() if facts.state.between else self._members())
        elif not member:
            self._keep_or_release(worker, why)
        elif facts.awaited():
            self._waits_for_members = True  # after a controller's start; without them it would seem that too few are left
        elif self._failures.recovery is None:
            await self._let_go(worker, why)

    def _keep_or_release(self, worker: Worker, why: str) -> None:
        """Keep or release a worker that is no member yet and wants to leave.

        The prepared plan may be voted for already: a worker that it names stays until that plan is forgotten, or until the next
        plan has replaced it.
        """
        prepared = self._facts.state.prepared
        if prepared is not None and worker.worker_id in prepared.participants:
            self._kept_for_prepared = True
            self._adapting.ask(f"{worker.pod_name} leaves: {why}", "leave", patient=True)
        self.release(self._members() | (set(prepared.participants) if prepared is not None else set()))

    async def _let_go(self, worker: Worker, why: str) -> None:
        """Let a member leave: plan without it, or, where too few workers would stay, pause the run at a checkpoint."""
        facts = self._facts
        if len(facts.members.available()) >= facts.job.placement.min_workers:
            self._adapting.ask(f"{worker.pod_name} leaves: {why}", "leave")
        else:
            await self._drain.pause(f"too few workers stay: {why}")

    async def settle(self) -> None:
        """After all members have entered a new generation: leavers outside it may exit, and leavers inside it get their plan."""
        members = self._members()
        self.release(members)
        for worker in [one for one in self._facts.members if one.presence == LEAVING and one.worker_id in members]:
            await self._let_go(worker, "it had asked to before the failure")

    def release(self, members: set[str]) -> None:
        """Send every leaving worker that is not among `members` the notice that it may exit."""
        for worker in self._facts.members:
            if worker.presence == LEAVING and worker.worker_id not in members:
                self._outbox.streams.send(worker.worker_id, pb.WatchPlanResponse(end=pb.EndNotice(reason="it may leave")))

    def _members(self) -> set[str]:
        """Ids of the running plan's members."""
        current = self._facts.current
        return set(current.placement.workers) if current is not None else set()
