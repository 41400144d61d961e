"""The controller's facts about its run: the job, the cluster, the workers, and values derived from these and the durable
state."""

import asyncio
import time
from collections.abc import Callable, Iterable

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.job import Job, job_revision
from frostline_contract.phases import OUTSIDE
from frostline_contract.plan import Decision, Plan
from frostline_contract.run_status import ENDED
from frostline_controller.cluster.backend import ClusterState
from frostline_controller.decisions.surviving import in_force, surviving_decisions
from frostline_controller.ledger.books import Books
from frostline_controller.members.membership import GONE, Membership, Worker
from frostline_controller.run.durable import DurableState, FailedDevice, RunIdentity
from frostline_controller.run.memory_account import MemoryAccount
from frostline_controller.run.store import RunStore

DEVICE_FAILURES_MAX = 2
"""After this many failures in a run a GPU is not used in it again. A single error is often the only one, so one is forgiven."""


class RunFacts:
    """The values from which all parts of the controller decide.

    RPC handlers write what workers report (`members`, `entered`, the identity); the reconciler's task writes everything else.
    Values that a successor needs too are in the durable state, which this class only reads.

    Attributes:
        cluster: the cluster's state when it was last read.
        members: workers that have registered, with what their heartbeats say.
        entered: by id, members that have entered the current generation: (step of the switch, seconds that entering took).
        reshape_seconds: how long the last reshape stopped training.
        started: when this controller began to lead, by `clock`. Since then workers can reach this controller.
        message: for the status: what the run waits for; empty where it does not wait.
        trouble: for the status: a problem that somebody has to mend while the run goes on; empty where there is none.
        memory: the memory of each generation's fullest worker, beside the plan's prediction.
        books: the ledger of each worker's time. RPC handlers keep the reports of workers, the reconciler's task adds them up.
        accept_numerics: whether workers with another probe digest are accepted (resume --accept-numerics).
        wake: set when the reconciler has something to do.
        hurry: set when a decision is due, so that the next round begins at once instead of waiting for more messages.
    """

    def __init__(
        self,
        job: Job,
        store: RunStore,
        cluster: ClusterState,
        clock: Callable[[], float] = time.monotonic,
        parallel_slots: int | None = None,
        cache_address: str = "",
    ) -> None:
        """
        Args:
            job: the job that the run follows.
            store: the run's durable state.
            cluster: the cluster's state from which the state in `store` was taken over.
            clock: a monotonic clock, in seconds.
            parallel_slots: how many workers can compute at once, where all share this machine; None: all of them.
            cache_address: host:port of a cache server that leaves no address in the run directory; empty: there is none.
        """
        self._store, self._cache_address = store, cache_address
        self.job, self.job_revision = job, job_revision(job)
        self.cluster, self.clock, self.parallel_slots = cluster, clock, parallel_slots
        self.members = Membership(job.controller.dead_after_seconds, job.controller.heartbeat_seconds)
        self.wake, self.hurry = asyncio.Event(), asyncio.Event()
        self.entered: dict[str, tuple[int, float]] = {}
        self.reshape_seconds = 1.0
        self.message, self.trouble = store.state.message, ""
        self.memory, self.books = MemoryAccount(), Books()
        self.accept_numerics = False
        self._follow_identity()
        self._surviving: tuple[object, object, object, list[Decision]] | None = None
        self.begin()

    def begin(self) -> None:
        """Count from now on the time for which this controller has led: it may have waited long before anybody could reach it."""
        self.started = self.clock()
        self._progress = (self.step, self.started)

    # ---- what is durable

    @property
    def state(self) -> DurableState:
        """The durable state as it was committed last; only the store changes it."""
        return self._store.state

    @property
    def current(self) -> Plan | None:
        """The plan of the newest generation that was started or switched to."""
        return self.state.current

    @property
    def live_plans(self) -> list[Plan]:
        """The current plan and the prepared one; neither, one or both may exist."""
        return [plan for plan in (self.state.current, self.state.prepared) if plan is not None]

    @property
    def ended(self) -> bool:
        """Whether the run is over (completed, failed, cancelled or suspended), although its end may not be announced yet."""
        return self.state.state in ENDED

    def surviving(self) -> list[Decision]:
        """Decisions that no later lineage has taken back, by number."""
        if self.calendar is None:
            return []
        decisions, lineages, known = self.state.decisions, self.state.lineages, self._surviving
        if known is None or known[0] is not decisions or known[1] is not lineages or known[2] is not self.calendar:
            found = surviving_decisions(decisions, lineages, self.calendar)
            self._surviving = known = (decisions, lineages, self.calendar, found)
        return known[3]

    def freeze_point(self) -> int:
        """The freeze point in force at the step that is being computed."""
        return self.freeze_point_under(in_force(self.surviving(), self.step + 1))

    def freeze_point_under(self, decision: Decision | None) -> int:
        """The freeze point of a decision; for None that of step 1."""
        return decision.freeze_point if decision is not None else self.initial_freeze_point

    def never_learnt(self) -> int:
        """Units of the prefix that have been frozen since step 1: the initial ones that no decision has unfrozen."""
        points = [decision.freeze_point for decision in self.surviving() if not decision.void]
        return min([self.initial_freeze_point, *points])

    @property
    def initial_freeze_point(self) -> int:
        """The freeze point of step 1. A share of the blocks becomes a number when the first worker has reported the number of
        units."""
        identity = self.identity
        return self.job.initial_freeze_point(identity.num_units) if identity is not None else self.job.initial_units

    # ---- what the run is

    @property
    def identity(self) -> RunIdentity | None:
        """The run's identity (data, units, probe digest) as the first worker gave it; None before."""
        return self._store.amendments.identity

    def adopt_identity(self, identity: RunIdentity) -> None:
        """Set the run's identity from a worker's registration. It is durable with the next commit."""
        self._store.amendments.identity = identity
        self._follow_identity()

    def _follow_identity(self) -> None:
        self.calendar: DecisionCalendar | None = None
        self.total_steps = self.job.training.steps or 0
        if self.identity is not None:
            per_epoch = self.identity.steps_per_epoch
            self.total_steps = self.job.total_steps(per_epoch)
            lag = self.job.decisions.lag_steps
            self.calendar = DecisionCalendar(self.job.interval_steps(per_epoch), lag, self.total_steps)

    def limit_workers(self) -> int:
        """Return how many workers the run may have: the job's number, or fewer at a user's request (at least min_workers)."""
        section, requested = self.job.placement, self.state.requested_workers
        return max(section.min_workers, min(section.workers, requested)) if requested > 0 else section.workers

    def follow(self, job: Job) -> None:
        """Replace the job by one that differs in live fields. Members follow it from the next generation on."""
        self.job, self.job_revision = job, job_revision(job)
        self.members.set_times(job.controller.dead_after_seconds, job.controller.heartbeat_seconds)

    def behind(self, plan: Plan) -> bool:
        """Whether the plan's members still follow an older revision of the job than this controller."""
        return plan.job_revision not in ("", self.job_revision)

    def cache_address(self) -> str:
        """host:port of the cache server: of one started for this run, else the one given at the start; empty: there is none."""
        file = self._store.places.cache_address
        return file.read_text(encoding="utf-8").strip() if file.exists() else self._cache_address

    @property
    def cache_shared(self) -> bool:
        """Whether other runs use the same cache server."""
        return self._store.places.cache_token.exists()

    @property
    def cache_off(self) -> str:
        """Why the cache is switched off; empty while it may be used."""
        return self._store.amendments.cache_off

    @property
    def wrong_bits(self) -> str:
        """The workers whose bits were or may have been wrong, in words, the newest time; empty where nobody was suspected.

        A wrong cached value, which names nobody, is the reason of `cache_off`.
        """
        found = self.state.wrong_bits
        return found.reason if found is not None and (found.detail["workers"] or "holders" in found.detail) else ""

    @property
    def memory_limit_bytes(self) -> int:
        """The most bytes that a worker of a plan may be predicted to need, since a larger plan ran out of memory; 0: no limit."""
        return self._store.amendments.memory_limit_bytes

    @property
    def quarantined(self) -> list[FailedDevice]:
        """GPUs that no plan uses any more."""
        return [one for one in self._store.amendments.failed_devices if one.failures >= DEVICE_FAILURES_MAX]

    # ---- how far it has come

    @property
    def step(self) -> int:
        """The last committed step, as members of the running generation report it."""
        return self.step_of(self.current) if self.current is not None else 0

    def step_of(self, plan: Plan) -> int:
        """The last committed step of `plan`, from its members' reports and the durable records."""
        reported_steps = [
            worker.step
            for worker_id in plan.placement.workers
            if (worker := self.members.get(worker_id)) is not None and worker.generation == plan.generation
        ]
        durable = self._store.records.durable_step(self.state.lineage, self.state.starts_at(self.state.lineage))
        return max([*reported_steps, durable, max(plan.start_step, 0)])

    def step_seconds(self) -> float:
        """Duration of the newest recorded step; the plan's prediction before there is one."""
        if (latest := self._store.records.latest) is not None and latest.step_seconds > 0:
            return latest.step_seconds
        predicted = self.current.placement.predicted_step_seconds if self.current else 0.0
        return predicted or 1.0

    # ---- who is there

    def loss_among(self, worker_ids: Iterable[str], return_seconds: float) -> str:
        """Why one of these workers is gone; "" where none is.

        Args:
            worker_ids: the workers to look at.
            return_seconds: how long after this controller's start a worker that has not yet connected to it counts as there.
        """
        settled = self.clock() - self.started > return_seconds
        return next((loss for one in worker_ids if (loss := self.members.loss_of(one, self.cluster.uids, settled))), "")

    def overdue(self, now: float) -> list[Worker]:
        """Workers whose heartbeats have been missing for too long. Members are exempt while their generation commits steps: votes
        are unanimous, so such a member computes and only its connection is broken."""
        if self.step != self._progress[0]:
            self._progress = (self.step, now)
        moving = now - self._progress[1] < self.members.dead_after_seconds
        members = self.current.placement.global_ranks if self.current else {}
        return [worker for worker in self.members.overdue(now) if not (moving and worker.worker_id in members)]

    def available(self) -> list[Worker]:
        """Workers that a plan may name: not those still inside a generation that is over, nor those on a GPU in quarantine."""
        behind = {worker.worker_id for worker in self.left_behind()}
        sick = {(one.node, one.uuid) for one in self.quarantined}
        return [one for one in self.members.available() if one.worker_id not in behind and one.gpu not in sick]

    def awaited(self) -> list[str]:
        """Members of the running plan that have not connected to this controller since it started, and still may."""
        members = self.current.placement.workers if self.current is not None else ()
        return [one for one in members if self.members.get(one) is None and not self.members.has_ended(one)]

    def left_behind(self) -> list[Worker]:
        """Workers outside all plans whose training thread is in a step of an older generation: the fence has not reached it."""
        current = self.current
        if current is None:
            return []
        prepared = self.state.prepared
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
