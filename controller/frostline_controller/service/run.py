"""One run as the controller holds it: job, durable state, members, logs. The parts of the service share it."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import Job, job_revision, section_digests
from frostline_contract.phases import OUTSIDE
from frostline_contract.plan import Decision, GenerationId, Plan
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import ENDED
from frostline_controller.cluster.backend import ClusterBackend, ClusterState
from frostline_controller.history import in_force, surviving_decisions
from frostline_controller.membership import GONE, Membership, Worker
from frostline_controller.planner.backend import choose_backend
from frostline_controller.service.events import KINDS, EventLog, event_line
from frostline_controller.service.faults import PlannedFaults
from frostline_controller.service.plan_log import PlanLog
from frostline_controller.service.records import RecordLog, StatisticsLog
from frostline_controller.service.streams import Streams
from frostline_controller.state.durable import DurableState, DurableStore, FailedDevice, with_decisions
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import to_message

log = logging.getLogger(__name__)

WARNINGS = frozenset(("failure", "hang", "checkpoint_failed", "decision_void", "cannot_start", "wrong_bits", "quarantine",
                      "out_of_memory", "pause"))  # fmt: skip
"""Kinds of events that somebody may have to do something about."""
DEVICE_FAILURES_MAX = 2
"""A GPU that failed so often in a run is not used in it any more: one error is often the only one."""


class Run:
    """Shared context. Only the reconciler's task calls `commit`, so of two changes none is lost.

    cache_address: host:port of a cache server that leaves no address in the run's folder; empty: none.
    untold: lines of plans.jsonl about the current plan while it is durable and nobody may hear of it yet.
    may_write: raises where this controller leads no more; asked before each write to the run's files.
    trouble: what somebody has to see to while the run goes on, for the status; empty: nothing.
    entered: members that have entered the current generation, with the step of the switch and how long it took.
    """

    def __init__(
        self,
        job: Job,
        folder: Path,
        backend: ClusterBackend,
        store: DurableStore,
        state: DurableState,
        cluster: ClusterState,
        clock: Callable[[], float] = time.monotonic,
        parallel_slots: int | None = None,
        cache_address: str = "",
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        self.parallel_slots, self._cache_address = parallel_slots, cache_address
        self.job, self.job_revision = job, job_revision(job)
        self.places, self.backend, self.clock = RunDirectory(folder), backend, clock
        self.folder = self.places.path
        self._store = store
        # Durable with whatever is written next, as identity and retries are.
        self.state = state.model_copy(update={"job_digests": section_digests(job)})
        self.cluster = cluster
        self.members = Membership(job.controller.dead_after_seconds, job.controller.heartbeat_seconds)
        self.streams = Streams()
        self.records = RecordLog(self.places.metrics, may_write)
        self.statistics = StatisticsLog(self.places.statistics, may_write)
        self.plans = PlanLog(self.places.plans, may_write)
        self.events = EventLog(self.places.events, may_write)
        self.faults = PlannedFaults(job, self.folder)
        self.wake = asyncio.Event()
        self.hurry = asyncio.Event()  # a decision is due: the next round does not wait for company
        self.identity = state.identity
        self.calendar = self._calendar()
        self.total_steps = job.total_steps(self.identity.steps_per_epoch) if self.identity else job.training.steps or 0
        self.entered: dict[str, tuple[int, float]] = {}
        self.reshape_seconds = 1.0
        self.started = self.clock()
        self._progress = (self.step, self.started)
        self.message = state.message
        self.trouble = ""
        self.accept_numerics = False
        self.retries, self.cache_off = state.retries, state.cache_off
        self.failed_devices, self.memory_limit_bytes = state.failed_devices, state.memory_limit_bytes
        self._removing: dict[str, str] = {}
        self.untold: list[dict[str, object]] = []
        self._plan_messages: dict[GenerationId, tuple[Plan, tuple[Decision, ...], bytes]] = {}
        self._surviving: tuple[object, object, object, list[Decision]] | None = None

    @property
    def current(self) -> Plan | None:
        return self.state.current

    @property
    def ended(self) -> bool:
        return self.state.state in ENDED

    def follow(self, job: Job) -> None:
        """Go on with a job that differs in live fields. Members follow with the next generation."""
        self.job, self.job_revision = job, job_revision(job)
        self.members.set_times(job.controller.dead_after_seconds, job.controller.heartbeat_seconds)

    def behind(self, plan: Plan) -> bool:
        """Whether its members follow an older job than this controller."""
        return plan.job_revision not in ("", self.job_revision)

    def stamped(self, plan: Plan) -> Plan:
        """A plan as it is written: with the job that its members are to follow, the run's prefix tile, and the backend."""
        tile = self.identity.prefix_tile if self.identity is not None else plan.prefix_tile
        devices = [worker.device if worker is not None else None for worker in map(self.members.get, plan.participants)]
        backend, why = choose_backend(self.job.placement.backend, devices)
        log.info("backend generation=%s backend=%s reason=%r", plan.generation, backend, why)
        return plan.model_copy(update={"job_revision": self.job_revision, "prefix_tile": tile, "backend": backend})

    def cache_address(self) -> str:
        """host:port of the cache server: where one has been started for this run, else what we were told; empty: none."""
        file = self.places.cache_address
        return file.read_text(encoding="utf-8").strip() if file.exists() else self._cache_address

    def adopt_identity(self, identity: Any) -> None:
        """The first worker's word on what the run is. Durable with the first plan."""
        self.identity = identity
        self.calendar = self._calendar()
        self.total_steps = self.job.total_steps(identity.steps_per_epoch)

    async def commit(self, **changes: Any) -> None:
        """Change the durable state: written and tested before it is true here. Raises Conflict where another leads.

        identity, retries, cache_off, failed_devices and memory_limit_bytes become durable with whatever is written next.
        """
        own = {name: getattr(self, name) for name in ("identity", "retries", "cache_off", "failed_devices", "memory_limit_bytes")}
        fresh = self.state.model_copy(update={**own, **changes})
        await asyncio.to_thread(self._store.write, self.state, fresh, self._removing)
        self.state, self._removing = fresh, {}

    @contextlib.contextmanager
    def removing(self, annotation: str, text: str) -> Iterator[None]:
        """The next commit in here removes an annotation where it still says `text`: what it asked for is durable then."""
        self._removing = {annotation: text} if text else {}
        try:
            yield
        finally:
            self._removing = {}

    async def remove_annotation(self) -> None:
        """Where no commit has done it: what was asked for needs no state."""
        if self._removing:
            await self.commit()

    async def scale(self, pods: int) -> None:
        """Write spec.replicas. A successor finishes it, and takes no half-done write for a person's request."""
        await self.commit(replicas=pods, scaling_from=self.cluster.spec_replicas)
        await asyncio.to_thread(self.backend.scale, pods)
        await self.commit(scaling_from=-1)
        await self.reread()

    async def reread(self) -> None:
        """Read the cluster again after a write, so that what was there before is no new request."""
        self.cluster = await asyncio.to_thread(self.backend.read)

    def surviving(self) -> list[Decision]:
        if self.calendar is None:
            return []
        decisions, lineages, known = self.state.decisions, self.state.lineages, self._surviving
        if known is None or known[0] is not decisions or known[1] is not lineages or known[2] is not self.calendar:
            found = surviving_decisions(decisions, lineages, self.calendar)
            self._surviving = known = (decisions, lineages, self.calendar, found)
        return known[3]

    def freeze_point(self) -> int:
        """In force at the step that is being computed."""
        decision = in_force(self.surviving(), self.step + 1)
        return decision.freeze_point if decision else 0

    @property
    def step(self) -> int:
        """The last step that members of the running generation say is committed."""
        return self.step_of(self.current) if self.current is not None else 0

    def step_of(self, plan: Plan) -> int:
        """The last step that members of `plan` say is committed, or that is durable."""
        told = [
            worker.step
            for worker_id in plan.placement.workers
            if (worker := self.members.get(worker_id)) is not None and worker.generation == plan.generation
        ]
        durable = self.records.durable_step(self.state.lineage, self.state.starts_at(self.state.lineage))
        return max([*told, durable, max(plan.start_step, 0)])

    def loss_among(self, worker_ids: Iterable[str], return_seconds: float) -> str:
        """Why one of these is gone; "" where none is. return_seconds: after the start, for those that were not heard of yet."""
        settled = self.clock() - self.started > return_seconds
        return next((loss for one in worker_ids if (loss := self.members.loss_of(one, self.cluster.uids, settled))), "")

    def overdue(self, now: float) -> list[Worker]:
        """Workers that have been silent for too long. A member whose world still commits steps computes: it is only out of reach
        (votes are unanimous)."""
        if self.step != self._progress[0]:
            self._progress = (self.step, now)
        moving = now - self._progress[1] < self.members.dead_after_seconds
        members = self.current.placement.global_ranks if self.current else {}
        return [worker for worker in self.members.overdue(now) if not (moving and worker.worker_id in members)]

    def available(self) -> list[Worker]:
        """Workers that a plan may name: who is still inside a generation that is over is none of them."""
        behind = {worker.worker_id for worker in self.left_behind()}
        sick = {(one.node, one.uuid) for one in self.quarantined}
        return [one for one in self.members.available() if one.worker_id not in behind and one.gpu not in sick]

    @property
    def quarantined(self) -> list[FailedDevice]:
        """GPUs that no plan uses any more."""
        return [one for one in self.failed_devices if one.failures >= DEVICE_FAILURES_MAX]

    def awaited(self) -> list[str]:
        """Members of the running plan that have not come back to this controller since it started, and still may: no news of
        a worker is no leave of it."""
        members = self.current.placement.workers if self.current is not None else ()
        return [one for one in members if self.members.get(one) is None and not self.members.has_ended(one)]

    def left_behind(self) -> list[Worker]:
        """Workers outside all plans whose training thread is in a step of an older generation: the fence has not reached it."""
        if self.current is None:
            return []
        current, prepared = self.current, self.state.prepared
        ahead = prepared.places if prepared is not None else {}
        return [
            worker
            for worker in self.members
            if worker.worker_id not in current.places
            and worker.worker_id not in ahead
            and worker.presence != GONE
            and worker.phase not in OUTSIDE
            and worker.generation is not None
            and worker.generation < current.generation
        ]

    def step_seconds(self) -> float:
        """Of the newest record; the plan's prediction before there is one."""
        if (latest := self.records.latest) is not None and latest.step_seconds > 0:
            return latest.step_seconds
        predicted = self.current.placement.predicted_step_seconds if self.current else 0.0
        return predicted or 1.0

    def plan_message(self, plan: Plan) -> bytes:
        """The plan as all workers get it, serialized: anew only where the plan, or a decision that it carries, is."""
        decisions = self.state.decisions
        known = self._plan_messages.get(plan.generation)
        if known is not None and known[0] is plan and known[1] is decisions:
            return known[2]
        wire = to_message(with_decisions(plan, decisions), plan_pb2.Plan)
        message = pb.WatchPlanResponse(plan=wire).SerializeToString()
        live = {one.generation for one in (self.current, self.state.prepared) if one is not None}
        self._plan_messages = {name: kept for name, kept in self._plan_messages.items() if name in live}
        self._plan_messages[plan.generation] = (plan, decisions, message)
        return message

    async def event(self, kind: str, reason: str, seconds: float = 0.0, **fields: Any) -> None:
        """Write an event of the run, and tell the cluster. Never fails: what cannot be written now is written later."""
        line = self._event_line(kind, reason, seconds, **fields)
        await self.events.keep(line)
        await self._tell_cluster(line)

    async def worker_event(self, event: pb.RunEvent) -> bool:
        """Write an event that a worker tells of until it is acknowledged, once. True where it is new. Raises OSError.

        One of a kind that this controller does not know, of a newer worker, is logged.
        """
        if event.kind not in KINDS:
            log.warning("event of an unknown kind=%r step=%s reason=%r", event.kind, event.step, event.reason)
            return False
        detail = {"detail": dict(event.detail)} if event.detail else {}
        line = self._event_line(event.kind, event.reason, event.seconds, step=event.step, lineage=event.lineage, **detail)
        if not await self.events.add_once(line):
            return False
        await self._tell_cluster(line)
        return True

    def _event_line(self, kind: str, reason: str, seconds: float, **fields: Any) -> dict[str, Any]:
        """Stamped with generation, freeze point and shape."""
        plan = self.current
        values = {
            "step": self.step,
            "lineage": self.state.lineage,
            "generation": str(plan.generation) if plan else "",
            "freeze_point": self.freeze_point(),
            "degrees": plan.placement.degrees if plan else {},
            "num_microbatches": self.job.training.num_microbatches,
            "reason": reason,
            **fields,
        }
        return event_line(kind, self.state.started_at, seconds if math.isfinite(seconds) else 0.0, **values)

    async def _tell_cluster(self, line: dict[str, Any]) -> None:
        """An Event is no state: one that the cluster does not take is logged."""
        kind, reason = line["kind"], line["reason"]
        log.info("event kind=%s step=%s generation=%s reason=%r", kind, line["step"], line["generation"], reason)
        severity = "Warning" if kind in WARNINGS else "Normal"
        try:
            await asyncio.to_thread(self.backend.emit_event, severity, kind.title().replace("_", ""), reason)
        except OSError as error:
            log.warning("the cluster has not taken an event kind=%s error=%s", kind, error)

    def close(self) -> None:
        for part in (self.records, self.statistics, self.plans, self.events):
            part.close()

    def _calendar(self) -> DecisionCalendar | None:
        if self.identity is None:
            return None
        per_epoch = self.identity.steps_per_epoch
        return DecisionCalendar(self.job.interval_steps(per_epoch), self.job.decisions.lag_steps, self.job.total_steps(per_epoch))
