"""Failures of the running generation: they are noticed or reported, and answered as soon as possible (docs/protocols.md 4).

All participants of the running generation and of a prepared plan are sent a fence and report the state that they hold. Then one
plan brings all pieces to one state, from survivors or from a checkpoint. A failure while members enter that plan is a failure of
that plan, and is answered in the same way.

This file keeps the order: `Recovery` gathers the reports, `recovery.answer` decides, `StartingPlans` makes the plan.
"""

import logging

from frostline_contract.lineage import ROLLBACK
from frostline_contract.phases import ControllerPhase, Phase
from frostline_contract.plan import Plan
from frostline_contract.run_status import RunStatus
from frostline_controller.members.devices import no_placement
from frostline_controller.members.entry import Entry, EntryWatch
from frostline_controller.members.membership import LEAVING, Worker
from frostline_controller.members.removal import Removals
from frostline_controller.planner.choice import PlanChoice
from frostline_controller.recovery.cause import announce_wrong_bits, cause_of, of_its_own, wrong_bits_of
from frostline_controller.recovery.facts import Answer, Failure, GoBack, GoOn, NewEpoch, Wait
from frostline_controller.recovery.plans import StartingPlans
from frostline_controller.recovery.reports import Recovery, distrusts_anew, facts_line, fence_message, last_line
from frostline_controller.reshape.two_phase import Reshaping
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.plug import RoundPlug
from frostline_controller.run.store import RunStore
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.convert import generation_of

log = logging.getLogger(__name__)


class Failures:
    """Handles the failure that is being answered. RPC handlers call `note_report`; the reconciler calls the other methods.

    Args:
        facts, store, outbox, plug: the run's.
        choosing: asks the planner for a placement of the survivors.
        starting: makes and announces the plan that answers the failure.
        reshaping: drives the prepared plan.
        entry: which members have entered the generation.
        removals: deletes the pods of excluded workers.

    Attributes:
        recovery: the failure that is being answered; None: there is none.
    """

    def __init__(
        self, facts: RunFacts, store: RunStore, outbox: Outbox, plug: RoundPlug, *,
        choosing: PlanChoice, starting: StartingPlans, reshaping: Reshaping, entry: EntryWatch, removals: Removals,
    ) -> None:  # fmt: skip
        self._facts, self._store, self._outbox, self._plug = facts, store, outbox, plug
        self._choosing, self._starting, self._reshaping = choosing, starting, reshaping
        self._entry, self._removals = entry, removals
        self.recovery: Recovery | None = None
        self._name = facts.members.name_of

    # ---- how a failure becomes known

    def note_report(self, worker_id: str, request: pb.ReportRecoveryRequest) -> None:
        """Take a survivor's report. Where a newer plan has answered it, that plan is sent again; wrong bits count in any case."""
        facts, outbox, plan, prepared = self._facts, self._outbox, self._facts.current, self._facts.state.prepared
        if plan is None or facts.state.between:
            return
        newest_received = generation_of(request.generation)
        member = worker_id in plan.placement.global_ranks
        if self._current_recovery is None and prepared is not None and not member and worker_id in prepared.places:
            if not request.HasField("ran") or not plan.generation <= generation_of(request.ran):
                # A joiner or spare that cannot prepare the next plan: the running generation does not need it.
                self._reshaping.withdraw(f"{self._name(worker_id)} gave it up: {last_line(request.error) or 'no reason given'}")
                return
            member = True  # the worker has switched to the prepared plan already
        answered = newest_received < plan.generation or (self._current_recovery is None and not member)
        if not answered or distrusts_anew(request, facts.state.lineages):
            self.fail(f"{self._name(worker_id)} reports: {last_line(request.error) or 'its peers are gone'}")
            assert self.recovery is not None
            self.recovery.take(request, promise=not answered)
        if answered:
            outbox.streams.send(worker_id, outbox.plan_message(plan))
            if self._current_recovery is not None:
                outbox.streams.send(worker_id, fence_message(plan.generation, self._current_recovery.reason))

    @property
    def _current_recovery(self) -> Recovery | None:
        """The failure of the current generation; None where `recovery` is an earlier one, whose answer is being announced."""
        recovery, current = self.recovery, self._facts.current
        return recovery if recovery is not None and current is not None and recovery.of == current.generation else None

    def fail(self, reason: str) -> None:
        """Begin the recovery of the running generation, unless one is under way."""
        if self._current_recovery is None and self._facts.current is not None and not self._facts.state.between:
            log.warning("failure generation=%s reason=%r", self._facts.current.generation, reason)
            self.recovery = Recovery(self._facts.clock(), reason, self._facts.current.generation)
            self._facts.wake.set()

    def exclude(self, worker_id: str, reason: str) -> None:
        """Exclude a member that hangs: the answer is made without the member, and its pod is deleted afterwards."""
        self.fail(f"{self._name(worker_id)} is excluded: {reason}")
        if self.recovery is not None:
            self.recovery.exclude_hung(worker_id, reason)

    def watch_members(self) -> None:
        """Begin a recovery where a member is gone, or reports by heartbeat that it waits for the answer to a failure."""
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

    def fences(self) -> list[pb.WatchPlanResponse]:
        """Return the fence for a worker whose stream has just opened; none unless a failure is being answered."""
        if self._current_recovery is None:
            return []
        newest = max(plan.generation for plan in self._facts.live_plans)
        return [fence_message(newest, self._current_recovery.reason)]

    def forget(self) -> None:
        """Drop the failure: its generation is over for another reason, so no answer is due."""
        self.recovery = None

    @property
    def crash_loop(self) -> str:
        """Why the run has to fail: its retry budget is used up. Empty otherwise."""
        return self._store.amendments.retries.exhausted(self._facts.job.controller.fruitless_recoveries_max)

    # ---- the answer

    async def advance(self, now: float) -> None:
        """Answer the failure as soon as the answer is known and there are enough workers. Raises CheckpointsGone."""
        facts, recovery = self._facts, self.recovery
        assert recovery is not None
        await self._starting.finish_epoch()
        recovery.fence(facts, self._outbox, now)
        await self._plug.at(ControllerPhase.RECOVERING)
        found, failure = recovery.answer(facts, now, self._reshaping.votable)
        if isinstance(found, Wait):
            facts.message = f"after a failure: waiting for the reports of {', '.join(map(self._name, found.workers[:4]))}"
            return
        workers = self._usable_workers(failure, now)
        if why := self._too_few(found, failure, workers, recovery, now):
            await self._wait(why, recovery)
            return
        known = facts.step
        self._charge_retry_budget(recovery, failure, known)
        if self.crash_loop:
            return
        try:
            with self._removals.added_with_plan(recovery.excluded):
                plan = await self._make_plan(found, failure, workers, recovery)
        except ValueError as refusal:
            await self._wait(no_placement(facts, len(workers), self._choosing.wanted_workers(), refusal), recovery)
            return
        interrupted = await self._entry.interrupt(failure.current, now)
        since = recovery.since if interrupted is None else interrupted
        lost_steps = max(0, known - max(plan.start_step, 0))
        self._entry.expect(Entry(plan, since, now, plan.reason, failed=True, lost_steps=lost_steps))
        if self.recovery is recovery:
            self.recovery = None
        await self.announce_wrong_bits()
        await self._starting.announce()
        await self._removals.advance()

    async def announce_wrong_bits(self) -> None:
        """Write the events of wrong bits that were answered, unless they are written; a predecessor may have made the plans."""
        await announce_wrong_bits(self._facts, self._store, self._outbox)

    async def _wait(self, why: str, recovery: Recovery) -> None:
        """Wait with the answer. The plan may need replacements of excluded workers, so the pods of these are deleted now."""
        self._facts.message = why
        self._removals.add(recovery.may_be_replaced)
        await self._removals.advance()

    async def _make_plan(self, found: Answer, failure: Failure, workers: list[Worker], recovery: Recovery) -> Plan:
        cause = cause_of(recovery, self._facts.members, failure)
        answers = {**facts_line(failure, found), "reason": cause}
        if recovery.distrusted_from:
            return await self._go_back_before(recovery, workers, cause, answers)
        if isinstance(found, GoOn) and await self._starting.newer_checkpoint(failure, found) is not None:
            found = GoBack((), f"survivors hold nothing newer than step {found.state.step}")
        if isinstance(found, GoOn):
            return await self._starting.from_survivors(failure, found, workers, cause, answers)
        assert isinstance(found, GoBack | NewEpoch)
        return await self._starting.from_checkpoint(workers, cause, found.reason, answers, epoch=isinstance(found, NewEpoch))

    async def _go_back_before(self, recovery: Recovery, workers: list[Worker], cause: str, answers: dict[str, object]) -> Plan:
        """Make a plan from the newest checkpoint before the first wrong step; a new run epoch makes later checkpoints void."""
        found = wrong_bits_of(recovery, self._facts.members)
        if recovery.cache_wrong:
            self._store.amendments.cache_off = f"the cache is off, a cached value was wrong: {cause}"
        off = "; the cache is off" if recovery.cache_wrong else ""
        why = f"what was computed from step {found.first_step} on is not to be trusted{off}"
        if "missing_checkpoint" in found.detail:
            why = f"what was computed from step {found.first_step} on is computed again, the missing checkpoint included"
        return await self._starting.from_checkpoint(workers, cause, why, answers, epoch=True, wrong_bits=found)

    def _charge_retry_budget(self, recovery: Recovery, failure: Failure, step: int) -> None:
        """Charge the failure to the retry budget, once, when it is known which workers have ended."""
        if not recovery.charged:
            recovery.charged = True
            amendments, facts = self._store.amendments, self._facts
            rollbacks = sum(start.kind == ROLLBACK for start in facts.state.lineages)
            own, text = of_its_own(recovery, facts.members, facts.cluster.uids, failure)
            amendments.retries = amendments.retries.charged(step, rollbacks, own, text)

    def _usable_workers(self, failure: Failure, now: float) -> list[Worker]:
        """Return the workers that a plan may name: survivors that have reported, spare workers, and joiners."""
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
                or (worker.worker_id not in named and now - worker.last_received < facts.members.lost_after_seconds)
            )
        ]
        if len(usable) < facts.job.placement.min_workers:  # leavers go on until all can stop at a checkpoint
            away = failure.silent | failure.ended
            usable += [w for w in facts.members if w.presence == LEAVING and w.worker_id in failure.reports.keys() - away]
        return usable

    def _too_few(self, found: Answer, failure: Failure, workers: list[Worker], recovery: Recovery, now: float) -> str:
        """Return why the plan waits for more workers; empty where it does not wait. Survivors keep their state while they wait.

        A run that has been asked to stop waits for nobody: whoever is left forms a generation, saves and stops. A pause does so
        only where members of it are left: else the run goes on.

        Args:
            found: the answer that the plan would carry out.
            failure: the facts from which the answer follows.
            workers: the workers that a plan may name.
            recovery: the failure that is being answered.
            now: seconds by the run's clock.
        """
        job, state = self._facts.job, self._facts.state
        stops = state.state == RunStatus.DRAINING and (isinstance(found, GoOn) or not state.paused)
        least = 1 if stops else job.placement.min_workers
        if len(workers) < least:
            kept = f"; all units are kept at step {found.state.step}" if isinstance(found, GoOn) else ""
            return f"waiting for workers after a failure: {len(workers)} of at least {least} are there{kept}"
        alone = not failure.reports and len(workers) < self._choosing.wanted_workers()
        if alone and now - recovery.since < job.controller.start_timeout_seconds:
            return "every member is gone: waiting for their replacements"
        return ""
