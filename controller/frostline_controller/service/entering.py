"""Plans that are entered without a vote: the first, one after a resume, and the answer to a failure (docs/protocols.md 4).

A failure is answered at once: everybody who may run the generation, or a prepared one, is fenced and reports what it holds; then
one plan brings all units to one step, from survivors or a checkpoint. A failure while members enter that plan is that plan's.
"""

import logging
from dataclasses import dataclass

from frostline_contract.lineage import ROLLBACK
from frostline_contract.phases import ControllerPhase, Phase
from frostline_contract.plan import Plan
from frostline_controller.membership import LEAVING, Worker
from frostline_controller.recovery.facts import Answer, Failure, GoBack, GoOn, NewEpoch, Wait
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.pods import Pods
from frostline_controller.run.store import RunStore
from frostline_controller.service.choosing import Choosing
from frostline_controller.service.devices import no_placement
from frostline_controller.service.faults import PlannedFaults
from frostline_controller.service.recovery import Recovery, distrusts_anew, facts_line, fence_message, generation_of, last_line
from frostline_controller.service.reshaping import Reshaping
from frostline_controller.service.start_wait import StartWait
from frostline_controller.service.starting import Starting
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)


@dataclass
class Entry:
    """A plan whose members have not all entered yet. since: of the failure that it answers, or of the run's start.

    reason: what is told when all have; empty where it was told already. failed: it answers a failure.
    """

    since: float
    planned_at: float
    reason: str
    failed: bool
    lost_steps: int = 0


class Entering:
    """Makes the plans that start a generation without a vote. `advance` is True while no generation is running."""

    def __init__(
        self, facts: RunFacts, store: RunStore, outbox: Outbox, pods: Pods, faults: PlannedFaults, *,
        choosing: Choosing, starting: Starting, reshaping: Reshaping,
    ) -> None:  # fmt: skip
        self._facts, self._store, self._outbox, self._pods = facts, store, outbox, pods
        self._faults, self._choosing, self._starting, self._reshaping = faults, choosing, starting, reshaping
        self.recovery: Recovery | None = None
        self.just_entered = False
        self._wait_for_start = StartWait(facts, choosing)
        self._name = facts.members.name_of
        self._entry = Entry(facts.clock(), facts.clock(), "", failed=False) if facts.current is not None else None
        self._to_delete: dict[str, str] = {}

    async def start(self) -> None:
        """Take over what a predecessor left: an epoch that is not begun, a plan whose entry nobody has told of."""
        facts, store, plan = self._facts, self._store, self._facts.current
        await self._starting.finish_epoch()
        if plan is None or plan.start == "continue" or facts.ended or facts.state.between:
            return
        told = any(
            line["kind"] in ("failure", "start") and line["generation"] == str(plan.generation) for line in store.events.all()
        )
        if not told:
            self._entry = Entry(facts.clock(), facts.clock(), plan.reason, failed=plan.base is not None)

    # ---- what arrives; the reconciler acts on it

    def note_report(self, worker_id: str, request: pb.ReportRecoveryRequest) -> None:
        """A survivor's promise and what it holds. One that a newer plan has answered is shown that plan; its distrust counts."""
        facts, outbox, plan, prepared = self._facts, self._outbox, self._facts.current, self._facts.state.prepared
        if plan is None or facts.state.between:
            return
        heard = generation_of(request.generation)
        member = worker_id in plan.placement.global_ranks
        if self._failing is None and prepared is not None and not member and worker_id in prepared.places:
            if not request.HasField("ran") or not plan.generation <= generation_of(request.ran):
                # A joiner or spare that cannot prepare the next plan: the running generation does not need it.
                self._reshaping.withdraw(f"{self._name(worker_id)} gave it up: {last_line(request.error) or 'no reason given'}")
                return
            member = True  # it has switched to it already
        answered = heard < plan.generation or (self._failing is None and not member)
        if not answered or distrusts_anew(request, facts.state.lineages):
            self.fail(f"{self._name(worker_id)} reports: {last_line(request.error) or 'its peers are gone'}")
            assert self.recovery is not None
            self.recovery.take(request, promise=not answered)
        if answered:
            outbox.streams.send(worker_id, outbox.plan_message(plan))
            if self._failing is not None:
                outbox.streams.send(worker_id, fence_message(plan.generation, self._failing.reason))

    @property
    def _failing(self) -> Recovery | None:
        """The failure of the generation that is current now. While its answer is being told the one before it is over."""
        recovery, current = self.recovery, self._facts.current
        return recovery if recovery is not None and current is not None and recovery.of == current.generation else None

    def fail(self, reason: str) -> None:
        """The running generation cannot go on."""
        if self._failing is None and self._facts.current is not None and not self._facts.state.between:
            log.warning("failure generation=%s reason=%r", self._facts.current.generation, reason)
            self.recovery = Recovery(self._facts.clock(), reason, self._facts.current.generation)
            self._facts.wake.set()

    def exclude(self, worker_id: str, reason: str) -> None:
        """A member hangs: the answer does without it, and its pod is taken away once the answer is out."""
        self.fail(f"{self._name(worker_id)} is excluded: {reason}")
        if self.recovery is not None:
            self.recovery.exclude_hung(worker_id, reason)

    def fences(self) -> list[pb.WatchPlanResponse]:
        """What a worker whose stream has just opened must hear of a failure that is being answered."""
        facts = self._facts
        if self._failing is None:
            return []
        newest = max(plan.generation for plan in facts.live_plans)
        return [fence_message(newest, self._failing.reason)]

    # ---- one round

    async def advance(self, now: float) -> bool:
        facts = self._facts
        await self._starting.announce()
        await self._delete_excluded()
        if facts.current is None or facts.state.between:
            await self._start(now)
            return facts.current is None or facts.state.between
        if self._entry is not None:
            await self._watch_entry(self._entry, now)
        self._watch_members()
        if self.recovery is not None:
            await self._recover(self.recovery, now)
            return True
        return False

    async def _start(self, now: float) -> None:
        """The first plan, or the first after a resume or a pause, when the workers for it are there."""
        facts, paused = self._facts, self._facts.state.paused
        self.recovery, self._entry = None, None  # of the generation before
        if not (workers := self._wait_for_start.workers(now)):
            return
        reason = "enough workers are there again" if paused else "resume" if facts.state.between else "first plan"
        plan = await self._starting.from_checkpoint(workers, reason)
        since = self._wait_for_start.since if paused else None
        self._entry = Entry(since if since is not None else facts.started, now, plan.reason, failed=False)
        self._wait_for_start.since = None
        await self._starting.announce()

    async def _recover(self, recovery: Recovery, now: float) -> None:
        """Answer a failure as soon as the answer is known and there are workers for it."""
        facts = self._facts
        await self._starting.finish_epoch()
        recovery.fence(facts, self._outbox, now)
        await self._faults.at(ControllerPhase.RECOVERING)
        found, failure = recovery.answer(facts, now)
        if isinstance(found, Wait):
            facts.message = f"after a failure: waiting for the reports of {', '.join(map(self._name, found.workers[:4]))}"
            return
        workers = self._usable(failure, now)
        if why := self._too_few(found, failure, workers, recovery, now):
            await self._wait(why, recovery)
            return
        known = facts.step
        self._charge(recovery, failure, known)
        if self.crash_loop:
            return
        try:
            plan = await self._make_plan(found, failure, workers, recovery)
        except ValueError as refusal:
            await self._wait(no_placement(facts, len(workers), self._choosing.wanted_workers(), refusal), recovery)
            return
        interrupted, since = self._entry, recovery.since
        if interrupted is not None and interrupted.failed and interrupted.reason:
            await self._tell(failure.current, interrupted, now, f"{interrupted.reason} (interrupted)")
            since = interrupted.since
        self._entry = Entry(since, now, plan.reason, failed=True, lost_steps=max(0, known - max(plan.start_step, 0)))
        if self.recovery is recovery:
            self.recovery = None
        self._to_delete |= recovery.excluded
        await self._starting.announce()
        if recovery.distrusted_from:
            await recovery.tell_wrong_bits(facts, self._outbox, plan)
        await self._delete_excluded()

    async def _wait(self, why: str, recovery: Recovery) -> None:
        """No answer yet. It may need those who come in the place of the excluded: these go now, not when the answer is out."""
        self._facts.message = why
        self._to_delete |= recovery.may_be_replaced
        await self._delete_excluded()

    async def _make_plan(self, found: Answer, failure: Failure, workers: list[Worker], recovery: Recovery) -> Plan:
        cause = recovery.cause(self._facts, failure)
        facts = {**facts_line(failure, found), "reason": cause}
        if recovery.distrusted_from:
            return await self._go_back_before(recovery, workers, cause, facts)
        if isinstance(found, GoOn) and await self._starting.newer_checkpoint(failure, found) is not None:
            found = GoBack((), f"survivors hold nothing newer than step {found.state.step}")
        if isinstance(found, GoOn):
            return await self._starting.from_survivors(failure, found, workers, cause, facts)
        assert isinstance(found, GoBack | NewEpoch)
        return await self._starting.from_checkpoint(workers, cause, found.reason, facts, epoch=isinstance(found, NewEpoch))

    async def _go_back_before(self, recovery: Recovery, workers: list[Worker], cause: str, facts: dict[str, object]) -> Plan:
        """From the newest checkpoint of before the first wrong step, in a run epoch of its own: nothing later counts any more."""
        first = recovery.distrusted_from
        if recovery.cache_wrong:
            self._store.amendments.cache_off = f"the cache is off, a cached value was wrong: {cause}"
        why = f"what was computed from step {first} on is not to be trusted{'; the cache is off' if recovery.cache_wrong else ''}"
        return await self._starting.from_checkpoint(workers, cause, why, facts, epoch=True, distrusted_from=first)

    def _charge(self, recovery: Recovery, failure: Failure, step: int) -> None:
        """Each failure is charged to the retry budget once, when it is clear who has ended of it."""
        if not recovery.charged:
            recovery.charged = True
            rollbacks = sum(start.kind == ROLLBACK for start in self._facts.state.lineages)
            own = recovery.of_its_own(self._facts, failure)
            amendments = self._store.amendments
            amendments.retries = amendments.retries.charged(step, rollbacks, *own)

    def _usable(self, failure: Failure, now: float) -> list[Worker]:
        """Whom a plan may name: survivors that have promised, spares, and joiners that wait for it."""
        facts = self._facts
        plans = [plan for plan in (failure.current, failure.prepared) if plan is not None]
        named = {worker_id for plan in plans for worker_id in plan.participants}
        usable = [
            worker
            for worker in facts.available()
            if worker.worker_id not in failure.silent | failure.ended
            and facts.members.reachable(worker.worker_id, now)
            and (
                worker.worker_id in failure.reports
                or (worker.worker_id not in named and now - worker.last_heard < facts.members.lost_after_seconds)
            )
        ]
        if len(usable) < facts.job.placement.min_workers:  # who wants to leave carries on until all can stop at a checkpoint
            away = failure.silent | failure.ended
            usable += [w for w in facts.members if w.presence == LEAVING and w.worker_id in failure.reports.keys() - away]
        return usable

    def _too_few(self, found: Answer, failure: Failure, workers: list[Worker], recovery: Recovery, now: float) -> str:
        """Why the plan waits for more workers, or nothing. What survivors hold stays with them: they have promised to wait."""
        facts = self._facts
        least = facts.job.placement.min_workers
        if len(workers) < least:
            kept = f"; all units are kept at step {found.state.step}" if isinstance(found, GoOn) else ""
            return f"waiting for workers after a failure: {len(workers)} of at least {least} are there{kept}"
        alone = not failure.reports and len(workers) < self._choosing.wanted_workers()
        if alone and now - recovery.since < facts.job.controller.start_timeout_seconds:
            return "every member is gone: waiting for their replacements"
        return ""

    @property
    def crash_loop(self) -> str:
        """What to say where recoveries no longer help; empty otherwise."""
        return self._store.amendments.retries.exhausted(self._facts.job.controller.fruitless_recoveries_max)

    # ---- entering

    async def _watch_entry(self, entry: Entry, now: float) -> None:
        """Until all members have entered: then it is told; where they do not, that is a failure of its own."""
        facts, plan = self._facts, self._facts.current
        assert plan is not None
        inside = [worker_id for worker_id in plan.placement.workers if self._is_inside(worker_id, plan)]
        if len(inside) == len(plan.placement.workers):
            self._entry, self.just_entered = None, True
            await self._tell(plan, entry, now, entry.reason)
        elif plan.start != "continue" and now - entry.planned_at > facts.job.controller.reshape_deadline_seconds:
            entry.planned_at = now
            late = [worker_id for worker_id in plan.placement.workers if worker_id not in inside]
            self.fail(f"{len(late)} of {len(plan.placement.workers)} workers did not enter {plan.generation}: {late[:4]}")

    def _is_inside(self, worker_id: str, plan: Plan) -> bool:
        worker = self._facts.members.get(worker_id)
        return worker_id in self._facts.entered or (
            worker is not None and worker.generation == plan.generation and worker.step > 0
        )

    async def _tell(self, plan: Plan, entry: Entry, now: float, reason: str) -> None:
        if plan.start == "continue" or not reason:
            return
        step = max(plan.start_step, 0)
        kind, lost = ("failure", {"lost_steps": entry.lost_steps}) if entry.failed else ("start", {})
        await self._outbox.event(
            kind, reason, now - entry.since, step=step, lineage=plan.lineage, generation=str(plan.generation), **lost
        )

    async def take_away(self, worker_id: str, reason: str) -> None:
        """A worker of no use: its pod is deleted, and replaced."""
        self._to_delete[worker_id] = reason
        await self._delete_excluded()

    async def _delete_excluded(self) -> None:
        """The new generation fences; the kill follows (docs/protocols.md 7.3)."""
        facts = self._facts
        for worker_id, reason in list(self._to_delete.items()):
            worker = facts.members.get(worker_id)
            facts.members.exclude(worker_id, reason)
            if worker is not None:
                await self._pods.delete(worker.pod_uid)
            del self._to_delete[worker_id]

    def _watch_members(self) -> None:
        """A member that is gone is a failure of the generation, whoever notices it; so is one that waits for an answer."""
        facts, plan = self._facts, self._facts.current
        assert plan is not None
        if loss := facts.loss_among(plan.placement.workers, facts.members.dead_after_seconds):
            self.fail(loss)
            return
        for worker_id in plan.placement.workers:
            worker = facts.members.get(worker_id)
            if worker is not None and worker.phase == Phase.RECOVERY and worker.generation == plan.generation:
                self.fail(f"{self._name(worker_id)} waits for an answer to a failure")
                return
