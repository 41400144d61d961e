"""Leader election by a Lease that the chart has rendered and the leader renews (docs/protocols.md 5.4).

The Lease of another process has expired when it has not changed for its duration, counted from its first observation by this
process's own monotonic clock. The times in the Lease come from other machines' clocks and are never compared. The clock goes on
while the machine is suspended, since the others' clocks do. A leader's own time is counted from before its last request to renew.
Writes of a leader whose time is over are fenced by the incarnation in the durable state, and `may_write` keeps such a leader from
writing the run's files and pods, whatever `leads` returns a moment later.
"""

import datetime
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from frostline_controller.cluster.kubernetes.api import Api, ApiError, Changed, Json

log = logging.getLogger(__name__)

GUARD_SECONDS = 0.1
"""The longest delay, in seconds, with which a leader notices that its time is over or that another process has its Lease."""


@dataclass(frozen=True)
class LeaseTimes:
    """The times of a Lease, in seconds.

    Attributes:
        duration: silence after which other processes take over.
        renew_deadline: time without a renewal after which a leader stops acting, well before `duration`.
        retry: time between two tries.
    """

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not 0 < self.retry < self.renew_deadline < self.duration:
            raise ValueError(
                f"lease times are retry {self.retry:g}, renew deadline {self.renew_deadline:g}, duration {self.duration:g} s; "
                "each must be above the one before it"
            )

    @property
    def call(self) -> float:
        """The longest wait, in seconds, for a connection to the API server, and the same for an answer. A renewal is two calls:
        where one of them hangs, the next try comes before the deadline."""
        return min(self.retry, self.renew_deadline / 4)


def seconds_awake_or_not() -> float:
    """Return the time of a monotonic clock that goes on while the machine is suspended, where there is such a clock.

    So a virtual machine that was stopped for a minute sees at once that its Lease has expired.
    """
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class LeaderLease:
    """Leader election by a Lease: held by at most one controller at a time, renewed in a thread.

    Args:
        namespace, name: of the Lease.
        identity: of this process: its pod's UID and a nonce.
        times: the times of the election.
        on_lost: called, from a thread, when this process must stop acting.
        clock: seconds that also pass while the machine is suspended.
    """

    def __init__(self, api: Api, namespace: str, name: str, identity: str, times: LeaseTimes, on_lost: Callable[[], None],
                 clock: Callable[[], float] = seconds_awake_or_not) -> None:  # fmt: skip
        self._api, self._path = api.within(times.call), f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        self._identity, self._times, self._on_lost, self._clock = identity, times, on_lost, clock
        self._seen: tuple[str, float] = ("", 0.0)
        self._valid_until = 0.0
        self._lost = False
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []

    def acquire(self) -> bool:
        """Wait until this process leads, then start a thread that renews the Lease. False where `release` was called meanwhile.

        Call it once: a process that has lost the Lease ends, and its successor has another identity.
        """
        while not self._stopped.is_set():
            if self._try("acquire"):
                for task in (self._renew, self._guard):
                    self._threads.append(threading.Thread(target=task, name=f"lease{task.__name__}", daemon=True))
                    self._threads[-1].start()
                log.info("leading lease=%s identity=%s", self._path.rsplit("/", 1)[-1], self._identity)
                return True
            self._stopped.wait(self._times.retry * random.uniform(0.5, 1.0))
        return False

    def leads(self) -> bool:
        """Whether this process may act now."""
        return not self._lost and self._clock() < self._valid_until

    def release(self) -> None:
        """Stop leading, or waiting to lead, so that a successor need not wait until the Lease expires. `on_lost` may call it
        too."""
        self._stopped.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        if self.leads():
            self._valid_until = 0.0
            try:
                found = self._api.get(self._path)
                if found["spec"].get("holderIdentity") == self._identity:
                    found["spec"]["holderIdentity"] = ""
                    self._api.replace(self._path, found)
            except ApiError as error:
                log.warning("lease not released, it runs out by itself error=%s", error)

    def _renew(self) -> None:
        while not self._lost and not self._stopped.wait(self._times.retry * random.uniform(0.8, 1.0)):
            self._try("renew")

    def _guard(self) -> None:
        """Report the loss of the Lease when it happens, in a separate thread: a renewal that hangs would return too late."""
        while not self._stopped.wait(min(GUARD_SECONDS, max(0.0, self._valid_until - self._clock()))):
            if not self.leads():
                self._lost = True
                log.error("lease lost lease=%s identity=%s", self._path.rsplit("/", 1)[-1], self._identity)
                self._on_lost()
                return

    def _try(self, verb: str) -> bool:
        """Write this process's name where no other process holds the Lease. True where it was written."""
        started = self._clock()
        try:
            found = self._api.get(self._path)
            if not self._free(found, started):
                if verb == "renew":
                    self._valid_until = 0.0  # another process has it
                return False
            self._api.replace(self._path, self._written(found))
        except Changed:
            return False
        except ApiError as error:
            log.warning("lease not written verb=%s error=%s", verb, error)
            return False
        self._valid_until = started + self._times.renew_deadline
        return True

    def _free(self, found: Json, now: float) -> bool:
        """Whether the Lease is held by nobody, by this process, or by a process whose time is over."""
        spec = found.get("spec") or {}
        holder, version = spec.get("holderIdentity") or "", found["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, now)
        if holder in ("", self._identity):
            return True
        return now - self._seen[1] > float(spec.get("leaseDurationSeconds") or self._times.duration)

    def _written(self, found: Json) -> Json:
        spec = dict(found.get("spec") or {})
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"], spec["leaseTransitions"] = now, int(spec.get("leaseTransitions") or 0) + 1
        spec |= {"holderIdentity": self._identity, "renewTime": now, "leaseDurationSeconds": round(self._times.duration)}
        return {**found, "spec": spec}
