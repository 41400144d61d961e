"""A container from its first start to its last end: starts and restarts, probes, and status."""

import datetime
import logging
import threading
import time
from dataclasses import dataclass

from tests.cluster.api import TROUBLE, Json
from tests.cluster.containers import Process, Surroundings, Unsupported
from tests.cluster.probes import Probes
from tests.cluster.volumes import Sources

log = logging.getLogger(__name__)

HEALTHY_SECONDS = 30.0
"""A container that ran this long starts its back-off anew (a kubelet: 10 min)."""


@dataclass(frozen=True)
class BackOff:
    """Seconds between the end of a container and its next start; the first restart is immediate. A kubelet has 10 and 300."""

    first: float = 1.0
    largest: float = 10.0

    def seconds(self, ends: int) -> float:
        """Return the seconds of waiting. ends: number of ends, each soon after the one before."""
        return 0.0 if ends <= 1 else min(self.largest, self.first * 2 ** (ends - 2))


class ContainerLife:
    """One container of a pod. All methods belong to the pod's own thread, except `status`, which any thread may call.

    policy: the pod's restartPolicy. host: its real address. is_final: set by its pod when no container may start any more.
    """

    def __init__(self, spec: Json, policy: str, back_off: BackOff, host: str, running: threading.Event) -> None:
        self.spec, self.restarts, self.start_number, self.is_final = spec, 0, 0, False
        self._policy, self._back_off, self._host, self._running = policy, back_off, host, running
        self._process: Process | None = None
        self._probes: Probes | None = None
        self._started, self._started_at, self._next_start, self._ends = 0.0, "", 0.0, 0
        self._kill_at: float | None = None
        self._waiting: Json = {"reason": "ContainerCreating"}
        self._ended: Json | None = None

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def succeeded(self) -> bool:
        """Whether it has ended with success and stays down."""
        return self.is_over and self._ended is not None and self._ended["exitCode"] == 0

    @property
    def is_over(self) -> bool:
        """Whether it does not run and will not start again."""
        return self._process is None and (self.is_final or (self._ended is not None and not self._starts_again()))

    def advance(self, sources: Sources, around: Surroundings, grace_seconds: float) -> None:
        """Start the container where it should run, record its end, end it where a probe has failed."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._next_start and (self._ended is None or self._starts_again()):
                self._start(sources, around, now)
            return
        if self._probes is not None and self._probes.failed and self._kill_at is None:
            log.info("container is ended container=%s reason=%s", self.spec["name"], self._probes.failed)
            self.ask_to_end(grace_seconds)
        self.reap()

    def ask_to_end(self, grace_seconds: float) -> None:
        """Send SIGTERM now, SIGKILL after the grace period; a later call may shorten it."""
        deadline = time.monotonic() + grace_seconds
        if self._kill_at is None and self._process is not None and grace_seconds > 0:
            self._process.ask_to_end()
        self._kill_at = deadline if self._kill_at is None else min(self._kill_at, deadline)

    def reap(self) -> None:
        """Record the end of the process, or kill it when its grace period is over."""
        if self._process is None:
            return
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._process.end()
        code = self._process.exit_code()
        if code is None:
            return
        self._process.end()
        if self._probes is not None:
            self._probes.end()
        now = time.monotonic()
        self._ends = 1 if now - self._started > HEALTHY_SECONDS else self._ends + 1
        self._next_start = now + self._back_off.seconds(self._ends)
        self._waiting = {
            "reason": "CrashLoopBackOff",
            "message": f"back-off {self._next_start - now:.1f}s after exit code {code}",
        }
        self._ended = {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": self._started_at,
            "finishedAt": timestamp(),
        }
        self._process, self._kill_at = None, None

    def vanish(self) -> None:
        """End all processes, since their machine is gone."""
        if self._process is not None:
            self._process.end()
        if self._probes is not None:
            self._probes.end()

    def status(self) -> Json:
        """Return the container's part of the pod's status."""
        probes, ended = self._probes, self._ended
        if self._process is not None:
            state: Json = {"running": {"startedAt": self._started_at}}
        elif ended is not None and not self._waits_to_start_again():
            state = {"terminated": ended}
        else:
            state = {"waiting": self._waiting}
        earlier = ended is not None and "terminated" not in state
        return {
            "name": self.spec["name"],
            "image": self.spec.get("image", ""),
            "imageID": self.spec.get("image", ""),
            "containerID": f"process://{self.start_number}",
            "restartCount": self.restarts,
            "started": bool(self._process is not None and probes is not None and probes.started),
            "ready": bool(self._process is not None and probes is not None and probes.is_ready),
            "state": state,
            "lastState": {"terminated": ended} if earlier else {},
        }

    def _starts_again(self) -> bool:
        assert self._ended is not None
        if self.is_final:
            return False
        return self._policy == "Always" or (self._policy == "OnFailure" and self._ended["exitCode"] != 0)

    def _waits_to_start_again(self) -> bool:
        return self._ended is None or (self._starts_again() and time.monotonic() < self._next_start)

    def _start(self, sources: Sources, around: Surroundings, now: float) -> None:
        try:
            self._process = Process(self.spec, sources, around, self.start_number)
        except (OSError, Unsupported, *TROUBLE) as error:
            reason = "CreateContainerConfigError" if isinstance(error, (Unsupported, *TROUBLE)) else "RunContainerError"
            self._waiting, self._next_start = {"reason": reason, "message": str(error)[:500]}, now + 1.0
            log.warning("container not started container=%s reason=%s error=%s", self.spec["name"], reason, error)
            return
        self.restarts += self._ended is not None
        self.start_number += 1
        self._started, self._started_at = now, timestamp()
        self._probes = Probes(self.spec, self._process, self._host, self._running)


def timestamp() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
