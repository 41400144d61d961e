"""Plans that are entered without a vote: the first one, the one after a resume, and recovery after a failure (PROTOCOLS 4).

A recovery collects what the survivors own (ReportRecovery), waits until each member has reported, is known to be gone or
has missed its deadline, and answers with one plan. Here every such plan starts from the newest complete checkpoint;
`Recovery.reports` holds all that a plan from the survivors' own state needs.
"""

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path

from frostline_contract.plan import GenerationId
from frostline_controller.checkpoints import newest_checkpoint
from frostline_controller.history import in_force, surviving_decisions
from frostline_controller.membership import Worker
from frostline_controller.plan_building import entry_plan
from frostline_controller.service.choosing import Choosing
from frostline_controller.service.reshaping import plan_end_line, plan_line
from frostline_controller.service.run import Run
from frostline_controller.state.durable import LineageStart, next_generation
from frostline_proto.v1 import control_pb2 as pb

log = logging.getLogger(__name__)

FRUITLESS_ENTRIES_MAX = 5
"""Recoveries in a row without one committed step between them: a crash loop, the run stops with the first error."""


@dataclass
class Recovery:
    """A failure that is being answered. reports: by worker. reason: what was noticed first. errors: of the workers."""

    since: float
    reason: str
    reports: dict[str, pb.ReportRecoveryRequest] = field(default_factory=dict)


class Entering:
    """Makes the plans that start a generation from nothing. `advance` is True while no generation is running."""

    def __init__(self, run: Run, choosing: Choosing, checkpoint_root: Path) -> None:
        self._run, self._choosing, self._root = run, choosing, checkpoint_root
        self.recovery: Recovery | None = None
        self.resuming = False
        self.first_error = ""
        self._waiting_since: float | None = None
        self._planned_at = run.clock()
        self._all_entered = run.current is None
        self._failed_at: float | None = None
        self._fruitless = 0
        self._reason = ""
        self._entry_step = -1

    def note_report(self, worker_id: str, request: pb.ReportRecoveryRequest) -> None:
        """A survivor's promise and what it owns."""
        run = self._run
        plan = run.current
        if request.error and not self.first_error:
            self.first_error = request.error
        if plan is None:
            return
        reported = GenerationId(incarnation=request.generation.incarnation, counter=request.generation.counter)
        if reported < plan.generation:
            run.streams.send(worker_id, run.plan_message(plan))
            return
        self.fail(f"{self._name(worker_id)} reports: {_last_line(request.error) or 'its peers are gone'}")
        assert self.recovery is not None
        self.recovery.reports[worker_id] = request

    def fail(self, reason: str) -> None:
        """The running generation cannot go on."""
        if self.recovery is None:
            log.warning("failure generation=%s reason=%r", self._run.current.generation if self._run.current else "", reason)
            self.recovery = Recovery(since=self._run.clock(), reason=reason)
            self._failed_at = self._failed_at or self._run.clock()

    async def advance(self, now: float) -> bool:
        run = self._run
        if run.current is None or self.resuming:
            await self._start(now)
            return run.current is None or self.resuming
        self._watch_members()
        if self.recovery is not None:
            await self._recover(now)
            return True
        if not self._all_entered:
            await self._watch_entry(now)
        elif run.step > max(self._entry_step, 0):
            self._fruitless = 0
        return False

    async def _start(self, now: float) -> None:
        """The first plan, or the first after a resume: when all wanted workers are there, or the time for that is over."""
        run = self._run
        workers = run.members.available()
        if not workers or run.identity is None:
            self._waiting_since = None
            run.message = f"waiting for workers: 0 of {self._choosing.wanted_workers()} are there"
            return
        self._waiting_since = self._waiting_since if self._waiting_since is not None else now
        complete = len(workers) >= self._choosing.wanted_workers()
        late = now - self._waiting_since > run.job.controller.start_timeout_seconds
        enough = len(workers) >= run.job.placement.min_workers
        if complete or (late and enough):
            self._waiting_since = None
            await self._enter(workers, "resume" if self.resuming else "first plan", now)
        else:
            run.message = f"waiting for workers: {len(workers)} of {self._choosing.wanted_workers()} are there"

    async def _recover(self, now: float) -> None:
        """Answer a failure as soon as every member that can still be reached has said what it owns."""
        run, recovery = self._run, self.recovery
        assert recovery is not None and run.current is not None
        members = {*run.current.placement.workers, *(run.state.prepared.participants if run.state.prepared else ())}
        awaited = [w for w in members if w not in recovery.reports and run.members.reachable(w, now)]
        awaited = [worker_id for worker_id in awaited if self._runs_a_generation(worker_id)]
        over = now - recovery.since > run.job.controller.dead_after_seconds
        if awaited and not over:
            return
        alone = not recovery.reports and len(run.members.available()) < self._choosing.wanted_workers()
        if alone and now - recovery.since < run.job.controller.start_timeout_seconds:
            run.message = "every member is gone: waiting for their replacements"
            return
        usable = [
            worker
            for worker in run.members.available()
            if worker.worker_id not in {*members} - {*recovery.reports} or not self._runs_a_generation(worker.worker_id)
        ]
        usable = [worker for worker in usable if run.members.reachable(worker.worker_id, now)]
        if len(usable) < run.job.placement.min_workers:
            run.message = f"waiting for workers after a failure: {len(usable)} of at least {run.job.placement.min_workers}"
            return
        self._fruitless += 1
        if self.crash_loop:
            return
        await self._enter(usable, recovery.reason, now)

    @property
    def crash_loop(self) -> str:
        """What to say where recoveries no longer help; empty otherwise."""
        if self._fruitless <= FRUITLESS_ENTRIES_MAX:
            return ""
        first = self.first_error or "none"
        return f"{FRUITLESS_ENTRIES_MAX} recoveries in a row without one step between them; first error: {first}"

    async def _enter(self, workers: list[Worker], reason: str, now: float) -> None:
        """One plan for all `workers` that fit, from the newest complete checkpoint or from the initial weights."""
        run = self._run
        assert run.identity is not None and run.calendar is not None
        found = await asyncio.to_thread(newest_checkpoint, self._root)
        first = run.current is None
        step = found.step if found else 0
        lineage = 0 if first and found is None else run.state.max_lineage + 1
        lineages = run.state.lineages
        if lineage:
            lineages = (*lineages, LineageStart(lineage=lineage, starts_at_step=step, kind="restore"))
        timeline = surviving_decisions(run.state.decisions, lineages, run.calendar)
        decision = in_force(timeline, step + 1)
        choice = await self._choosing.choose(workers, decision.freeze_point if decision else 0, None, step)
        store = run.members.get(choice.placement.workers[0])
        assert store is not None
        base = run.current.generation if run.current else None
        generation = next_generation(run.state)
        checkpoint = (found.path, found.step) if found else None
        plan = entry_plan(generation, base, lineage, choice.placement, store, decision, checkpoint, f"{reason}; {choice.reason}")
        ended = run.step
        draining = run.state.state == "draining"
        await run.commit(
            current=plan, prepared=None, counter=generation.counter, lineage=lineage, lineages=lineages,
            max_lineage=max(run.state.max_lineage, lineage), state="draining" if draining else "running",
            start_pp_degree=run.state.start_pp_degree or choice.placement.pp_degree,
            start_dp_degree=run.state.start_dp_degree or choice.placement.dp_degree,
        )  # fmt: skip
        run.message, run.entered, self.recovery = "", {}, None
        self._all_entered, self._planned_at, self._reason, self._entry_step = False, now, reason, step
        run.streams.send_all(run.plan_message(plan))
        log.info(
            "plan entered without a vote generation=%s start=%s step=%s lineage=%s shape=%sx%s reason=%r",
            generation, plan.start, step, lineage, plan.placement.pp_degree, plan.placement.dp_degree, plan.reason,
        )  # fmt: skip
        ends = [plan_end_line(base, ended)] if base else []
        await run.plans.append([*ends, plan_line(plan, step + 1)])
        self.resuming = False

    async def _watch_entry(self, now: float) -> None:
        """Until all members have entered: then it is told; where they do not, that is a failure of its own."""
        run, plan = self._run, self._run.current
        assert plan is not None
        inside = [
            worker_id
            for worker_id in plan.placement.workers
            if worker_id in run.entered
            or ((worker := run.members.get(worker_id)) is not None and worker.generation == plan.generation and worker.step > 0)
        ]
        if len(inside) == len(plan.placement.workers):
            self._all_entered = True
            failed_at, self._failed_at = self._failed_at, None
            kind = "failure" if failed_at is not None else "start"
            seconds = now - (failed_at if failed_at is not None else run.started)
            if plan.start != "continue" and self._reason:
                await run.event(kind, plan.reason, seconds, step=max(plan.start_step, 0))
        elif plan.start != "continue" and now - self._planned_at > run.job.controller.reshape_deadline_seconds:
            late = [worker_id for worker_id in plan.placement.workers if worker_id not in inside]
            self._planned_at = now
            self.fail(f"{len(late)} of {len(plan.placement.workers)} workers did not enter {plan.generation}: {late[:4]}")

    def _watch_members(self) -> None:
        """A member that is gone is a failure of the generation, whoever notices it."""
        run, plan = self._run, self._run.current
        assert plan is not None
        settled = run.clock() - run.started > run.members.dead_after_seconds
        pods = {pod.uid for pod in run.cluster.pods}
        for worker_id in plan.placement.workers:
            worker = run.members.get(worker_id)
            unknown = worker is None and (settled or (bool(pods) and worker_id.rpartition("/")[0] not in pods))
            if unknown or (worker is not None and not run.members.is_alive(worker_id)):
                self.fail(f"{self._name(worker_id)} is gone{f': {worker.why_gone}' if worker else ''}")
                return

    def _runs_a_generation(self, worker_id: str) -> bool:
        worker = self._run.members.get(worker_id)
        return worker is not None and worker.generation is not None

    def _name(self, worker_id: str) -> str:
        worker = self._run.members.get(worker_id)
        return f"worker {worker.pod_name}" if worker else f"worker {worker_id}"


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
