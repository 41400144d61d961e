"""The membership: every worker that has registered, its last heartbeat, and whether it counts as alive.

This file holds facts and decides nothing. Times are of the controller's monotonic clock, in seconds.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter

from frostline_contract.device import DeviceFacts
from frostline_contract.phases import Phase
from frostline_contract.plan import GenerationId
from frostline_contract.statistics import CacheProfile, LinkProfile
from frostline_contract.worker_id import local_rank_of, ordinal_of, pod_uid_of
from frostline_contract.worker_state import WorkerState
from frostline_controller.planner.kept_profile import KeptProfile
from frostline_proto.v1 import control_pb2, plan_pb2

ALIVE, LEAVING, GONE = WorkerState.ALIVE, WorkerState.LEAVING, WorkerState.GONE
ENDED_KEPT = 1024
"""How many ended and excluded processes are remembered: late messages are refused, and recoveries ask who has ended."""


@dataclass
class Worker:
    """One worker process, as it registered and as its newest heartbeat describes it.

    Attributes:
        worker_id: "<pod uid>/<process nonce>".
        presence: alive, leaving (the worker has asked to go) or gone.
        step: the last committed step that the worker reported.
        phase_seconds: age of the phase at the time `phase_reported_at`.
        waiting_seconds: the part of `phase_seconds` in which the worker was blocked on other workers.
        device_phase, device_seconds, device_waiting: of the device, where it is behind the training thread; phase "" elsewhere.
        phase_p99: 99th percentile of each phase, seconds.
        busy_seconds: seconds of a step without waiting for others.
        slowness: `busy_seconds` over what the worker's peers would take for the same work; 0.0: unknown.
        lasting_slowness: the slowness that is believed after a minute (`stragglers.Belief`).
        link, near_link: measured links between machines and within one. Like `cache` they stay messages: few are ever read.
        uncovered_pieces: pieces that the worker's last vote found uncovered.
        watching: whether the worker's WatchPlan stream is open.
        unwatched_since: when that stream was last closed.
        on_notice: whether the worker has said that it has to leave.
        device: facts of the worker's device; None where the worker has not reported them.
        spending: the uses of the worker's time, reported at `spending_at`.
    """

    worker_id: str
    pod_name: str
    failure_domain: str
    process_id: int
    store_host: str
    store_port: int
    profile: KeptProfile
    registered_at: float
    last_received: float
    presence: WorkerState = ALIVE
    generation: GenerationId | None = None
    step: int = 0
    phase: str = Phase.START
    phase_seconds: float = 0.0
    phase_reported_at: float = 0.0
    waiting_seconds: float = 0.0
    device_phase: str = ""
    device_seconds: float = 0.0
    device_waiting: bool = False
    phase_p99: Mapping[str, float] = field(default_factory=dict)
    busy_seconds: float = 0.0
    slowness: float = 0.0
    lasting_slowness: float = 1.0
    resident_bytes: int = 0
    memory: control_pb2.MemoryUse | None = None
    link: LinkProfile | plan_pb2.LinkProfile | None = None
    near_link: LinkProfile | plan_pb2.LinkProfile | None = None
    cache: CacheProfile | plan_pb2.CacheProfile | None = None
    step_parts: Mapping[str, float] = field(default_factory=dict)
    uncovered_pieces: tuple[int, ...] = ()
    watching: bool = False
    unwatched_since: float = 0.0
    on_notice: bool = False
    why_gone: str = ""
    device: DeviceFacts | None = None
    spending: control_pb2.Spending | None = None
    spending_at: float = 0.0

    @cached_property
    def order(self) -> tuple[int, str, float, str]:
        """The sort key of the workers that a plan may name: pod ordinal first."""
        return self.ordinal, self.pod_name, self.registered_at, self.worker_id

    @property
    def pod_uid(self) -> str:
        """The uid of the worker's pod, from the worker's id. Other workers of that pod end with the pod."""
        return pod_uid_of(self.worker_id)

    @property
    def gpu(self) -> tuple[str, str]:
        """(node, UUID) of the worker's GPU; the UUID is "" where it has none."""
        return self.failure_domain, self.device.uuid if self.device is not None else ""

    @property
    def ordinal(self) -> int:
        """The pod's number in the StatefulSet; 0 for a pod of another kind."""
        return ordinal_of(self.pod_name)


class Membership:
    """All workers by id. Workers that are gone are kept for a while, so that the status can show them."""

    def __init__(self, dead_after_seconds: float, heartbeat_seconds: float) -> None:
        self.set_times(dead_after_seconds, heartbeat_seconds)
        self._workers: dict[str, Worker] = {}
        self._ended: dict[str, str] = {}
        self._excluded: dict[str, str] = {}

    def set_times(self, dead_after_seconds: float, heartbeat_seconds: float) -> None:
        """Set the times by which silence is judged, from the job.

        Args:
            dead_after_seconds: a worker is gone after this long without a sign of life.
            heartbeat_seconds: time between two heartbeats.
        """
        self.dead_after_seconds = dead_after_seconds
        self.lost_after_seconds = min(dead_after_seconds, 0.5 + 2 * heartbeat_seconds)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._workers.values())

    def get(self, worker_id: str) -> Worker | None:
        """The worker of that id, gone ones included; None for one that never registered or is forgotten."""
        return self._workers.get(worker_id)

    def name_of(self, worker_id: str) -> str:
        """A worker's name in messages: its pod's, or its id where it has never registered."""
        worker = self._workers.get(worker_id)
        return f"worker {worker.pod_name if worker is not None else worker_id}"

    def add(self, worker: Worker) -> bool:
        """Register; idempotent for one id. True where the worker is new (or had been given up)."""
        known = self._workers.get(worker.worker_id)
        if known is not None and known.presence != GONE:
            for name in ("step", "phase", "watching", "unwatched_since", "presence", "lasting_slowness", "on_notice", "spending",
                         "spending_at"):  # fmt: skip
                setattr(worker, name, getattr(known, name))
            worker.step = max(worker.step, known.step)
        self._workers[worker.worker_id] = worker
        return known is None or known.presence == GONE

    def displaced_by(self, worker: Worker, workers_per_pod: int, named: Iterable[str] = ()) -> list[str]:
        """Ids of earlier processes in the worker's place: the same pod uid and local rank with another nonce.

        Where a pod has one worker, its place is the pod. Where it has several, an id that does not say its local rank has no
        place.

        Args:
            worker: the newest process in the place.
            workers_per_pod: number of workers of each pod.
            named: ids that plans name; such workers may never have registered with this controller.
        """
        pod, local_rank = f"{worker.pod_uid}/", local_rank_of(worker.worker_id)
        if workers_per_pod > 1 and not local_rank:
            return []
        known = {other for other in named if other.startswith(pod)}
        known |= {other for other in self._workers if other.startswith(pod) and self.is_alive(other)}
        known -= {worker.worker_id}
        return sorted(
            other for other in known if (workers_per_pod == 1 or local_rank_of(other) == local_rank) and not self.has_ended(other)
        )

    def remove(self, worker_id: str, why: str) -> bool:
        """Mark as gone. True where it was not yet."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.presence == GONE:
            return False
        worker.presence, worker.why_gone = GONE, why
        return True

    def give_notice(self, worker: Worker) -> None:
        """Mark a worker as leaving: no new plan names it, and the end of its process is no crash."""
        if worker.presence != GONE:
            worker.presence, worker.on_notice = LEAVING, True

    def exclude(self, worker_id: str, why: str) -> None:
        """Exclude a worker and all others of its pod for good: until the pod is deleted, none of them may join again."""
        pod = pod_uid_of(worker_id)
        for one in {worker_id, *(worker.worker_id for worker in self if worker.pod_uid == pod)}:
            self.remove(one, why)
            self._excluded[one] = why
        _forget_oldest(self._excluded)

    def why_excluded(self, worker_id: str) -> str:
        """Why a worker is excluded; empty where it is not."""
        return self._excluded.get(worker_id, "")

    def end(self, worker_id: str, error: str) -> None:
        """Note that a process has ended, whether or not it had registered.

        Args:
            worker_id: the process.
            error: the traceback of the process's own fault; empty: there was none.
        """
        self._ended[worker_id] = self._ended.get(worker_id) or error
        _forget_oldest(self._ended)

    def has_ended(self, worker_id: str) -> bool:
        """Whether the end of this process is known, so that it can never come back."""
        return worker_id in self._ended

    def error_of(self, worker_id: str) -> str:
        """The traceback with which a worker ended; empty where there was none."""
        return self._ended.get(worker_id, "")

    def was_taken(self, worker_id: str, pods: Set[str]) -> bool:
        """Whether a worker's end was no crash: its pod is gone, or the worker had given notice.

        Args:
            worker_id: the worker.
            pods: uids of the existing pods; empty: unknown.
        """
        worker = self._workers.get(worker_id)
        return _pod_is_gone(worker_id, pods) or (worker is not None and worker.on_notice)

    def loss_of(self, worker_id: str, pods: Set[str], settled: bool) -> str:
        """Why a worker is gone, in words; empty while it is here or may come back. The only place that decides this.

        Args:
            worker_id: the worker.
            pods: uids of the existing pods; empty: unknown.
            settled: whether workers that have not connected to this controller by now are lost.
        """
        worker = self._workers.get(worker_id)
        ended = worker_id in self._ended
        if worker is not None and worker.presence != GONE and not ended:
            return ""
        if worker is None and not (ended or settled or _pod_is_gone(worker_id, pods)):
            return ""
        why = worker.why_gone if worker is not None else ""
        return f"{self.name_of(worker_id)} is gone{f': {why}' if why else ''}"

    def is_alive(self, worker_id: str) -> bool:
        """Whether the worker has registered and is not gone; one that is leaving is alive."""
        worker = self._workers.get(worker_id)
        return worker is not None and worker.presence != GONE

    def available(self) -> list[Worker]:
        """Workers that a plan may name, by pod ordinal and id: alive and not leaving."""
        return sorted((worker for worker in self._workers.values() if worker.presence == ALIVE), key=attrgetter("order"))

    def reachable(self, worker_id: str, now: float) -> bool:
        """Whether a worker will answer: false where its stream is closed and a few heartbeats are missing."""
        worker = self._workers.get(worker_id)
        if worker is None or worker.presence == GONE:
            return False
        return worker.watching or now - max(worker.last_received, worker.unwatched_since) < self.lost_after_seconds

    def unreachable(self, now: float, awaited: Set[str]) -> list[Worker]:
        """Workers whose connection has closed, except those in `awaited`."""
        return [
            worker
            for worker in self._workers.values()
            if worker.presence != GONE and worker.worker_id not in awaited and not self.reachable(worker.worker_id, now)
        ]

    def without_pod(self, pods: Set[str], registered_before: float) -> list[Worker]:
        """Workers whose pod no longer exists.

        Args:
            pods: uids of the existing pods; empty: unknown.
            registered_before: by the run's clock. The pods of workers that registered later may not be in `pods` yet.
        """
        return [
            worker
            for worker in self._workers.values()
            if worker.presence != GONE and _pod_is_gone(worker.worker_id, pods) and worker.registered_at < registered_before
        ]

    def overdue(self, now: float) -> list[Worker]:
        """Workers that have been silent for dead_after_seconds."""
        return [
            worker
            for worker in self._workers.values()
            if worker.presence != GONE and now - worker.last_received > self.dead_after_seconds
        ]

    def excuse(self, seconds: float) -> None:
        """Do not count the last `seconds` as silence of any worker: the controller itself did not run."""
        for worker in self._workers.values():
            worker.last_received += seconds
            worker.unwatched_since += seconds

    def forget_old(self, keep: Set[str], limit: int = 64) -> None:
        """Keep at most `limit` workers that are gone, beside those in `keep`."""
        gone = [worker.worker_id for worker in self._workers.values() if worker.presence == GONE and worker.worker_id not in keep]
        for worker_id in gone[: max(0, len(gone) - limit)]:
            del self._workers[worker_id]


def _pod_is_gone(worker_id: str, pods: Set[str]) -> bool:
    """Whether the pod of a worker is known to be deleted. An empty `pods` means that the existing pods are unknown."""
    return bool(pods) and pod_uid_of(worker_id) not in pods


def _forget_oldest(texts: dict[str, str]) -> None:
    while len(texts) > ENDED_KEPT:
        del texts[next(iter(texts))]
