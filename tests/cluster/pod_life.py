"""One pod on a test node, in a separate thread: prepares it, runs and ends its containers, and reports its status."""

import copy
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.addresses import real
from tests.cluster.api import TROUBLE, Json, Rest
from tests.cluster.container_life import BackOff, ContainerLife, timestamp
from tests.cluster.containers import Surroundings
from tests.cluster.volumes import Sources, Unsupported, Volumes

log = logging.getLogger(__name__)

TICK_SECONDS = 0.1
TRY_AGAIN_SECONDS = 0.5
TOKEN_SHARE, TOKEN_SHARE_ANNOTATION = 0.8, "frostline.test/token-share"
"""The share of a projected token's life after which it is renewed; by the annotation a test sets a smaller one."""
REPLACED = {"$patch": "replace"}
"""In a list of a strategic merge patch: removes the earlier entries."""
FORCED_GRACE_SECONDS = 1.0
"""The grace period of a pod whose object is gone, in seconds."""


@dataclass(frozen=True)
class Place:
    """The node's part of a pod. variables(pod): of the node and of Services. running: cleared while the node is frozen.

    changed(pod life): called when its status may have changed. mark: of the node's processes. address: the node's.
    """

    rest: Rest
    folder: Path
    mark: str
    address: str
    back_off: BackOff
    running: threading.Event
    variables: Callable[[Json], dict[str, str]]
    changed: Callable[["PodLife"], None]


class PodLife(threading.Thread):
    """One pod. pod: the object as last received. seen_at: its address as the API server has it.

    said: its status, as the API server should have it. over: it was deleted and none of its processes runs any more.
    """

    def __init__(self, place: Place, pod: Json, seen_at: str) -> None:
        metadata = pod["metadata"]
        super().__init__(name=f"pod {metadata['name']}", daemon=True)
        self.pod, self.over, self.vanished = pod, False, False
        self.folder = place.folder / f"{metadata['name']}.{metadata['uid'][:8]}"
        self._place, self._seen_at = place, seen_at
        self._wake = threading.Event()
        self._delete_at: float | None = None
        self._crashed = False
        self._error = ""
        self._first_done = False
        self._conditions: dict[str, Json] = {}
        self._started_at = timestamp()
        self.said: Json = {}
        policy, spec = pod["spec"].get("restartPolicy", "Always"), pod["spec"]
        of_each = (place.back_off, real(seen_at), place.running)
        first_policy = "OnFailure" if policy == "Always" else policy
        self.first = [ContainerLife(one, first_policy, *of_each) for one in spec.get("initContainers", ())]
        self.containers = [ContainerLife(one, policy, *of_each) for one in spec["containers"]]
        self._sources = Sources(place.rest, self._as_seen_inside(pod))
        share = metadata.get("annotations", {}).get(TOKEN_SHARE_ANNOTATION, TOKEN_SHARE)
        self._volumes = Volumes(self._sources, self.folder / "v", float(share))

    def update(self, pod: Json) -> None:
        """The object has changed. A deletion begins the grace period, or shortens it."""
        self.pod = pod
        self._sources.pod = self._as_seen_inside(pod)
        if pod["metadata"].get("deletionTimestamp"):
            self._delete_within(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0.0))

    def vanish(self) -> None:
        """The object is gone: somebody has deleted it by force."""
        self.vanished = True
        self._delete_within(FORCED_GRACE_SECONDS)

    def inherit(self) -> None:
        """The object's containers have run on this node before it started anew."""
        before = {one["name"]: one["restartCount"] for one in self.pod.get("status", {}).get("containerStatuses") or ()}
        for container in self.containers:
            container.restarts = before.get(container.spec["name"], -1) + 1

    def crash(self) -> None:
        """The machine is gone: nothing runs any more, and nobody is told."""
        self._crashed = True
        self._wake.set()

    def run(self) -> None:
        try:
            around = self._prepared()
            if around is not None:
                self._run_containers(around)
        finally:
            for container in (*self.first, *self.containers):
                container.vanish()
            if not self._crashed:
                self._publish()
                self.over = True
                self._place.changed(self)

    def _prepared(self) -> Surroundings | None:
        """Prepare volumes and variables; None where the pod was deleted meanwhile."""
        while not self._ends():
            try:
                self._volumes.prepare()
                variables = self._place.variables(self.pod)
            except (OSError, Unsupported, *TROUBLE) as error:
                self._error = str(error)[:500]
                log.info("pod not ready to start pod=%s error=%s", self.pod["metadata"]["name"], error)
                self._publish()
                self._pause(TRY_AGAIN_SECONDS)
                continue
            self._error = ""
            variables = {**variables, "FROSTLINE_BIND_HOST": real(self._seen_at)}
            mark = f"{self._place.mark}/{self.pod['metadata']['uid']}"
            return Surroundings(variables, self._volumes.folders, self.folder, mark)
        return None

    def _run_containers(self, around: Surroundings) -> None:
        grace_seconds = float(self.pod["spec"].get("terminationGracePeriodSeconds", 30))
        while not self._ends():
            waiting = next((one for one in self.first if not one.succeeded), None)
            self._first_done = waiting is None
            for container in self.containers if waiting is None else [waiting]:
                if not container.is_over:
                    container.advance(self._sources, around, grace_seconds)
            self._refresh()
            self._publish()
            if waiting is None or not waiting.succeeded:
                self._pause(TICK_SECONDS)
            if all(one.is_over for one in self.containers) or any(one.is_over and not one.succeeded for one in self.first):
                self._wait_for_deletion()
        self._end_containers()

    def _end_containers(self) -> None:
        if self._crashed:
            return
        asked_for: float | None = None
        both = (*self.first, *self.containers)
        for container in both:
            container.is_final = True
        while any(one.runs for one in both) and not self._crashed:
            assert self._delete_at is not None
            if asked_for != self._delete_at:
                asked_for = self._delete_at
                for container in both:
                    container.ask_to_end(max(0.0, asked_for - time.monotonic()))
            for container in both:
                container.reap()
            self._publish()
            self._pause(TICK_SECONDS)

    def _wait_for_deletion(self) -> None:
        self._publish()
        while not self._ends():
            self._pause(1.0)

    def _refresh(self) -> None:
        try:
            self._volumes.refresh()
        except (OSError, *TROUBLE) as error:
            log.info("volumes not refreshed pod=%s error=%s", self.pod["metadata"]["name"], error)

    def _ends(self) -> bool:
        return self._crashed or self._delete_at is not None

    def _delete_within(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        if self._delete_at is None or at < self._delete_at - 0.5:
            self._delete_at = at
        self._wake.set()

    def _pause(self, seconds: float) -> None:
        """Wait; a frozen node goes on at this place."""
        self._wake.wait(seconds)
        self._wake.clear()
        while not self._place.running.wait(0.2) and not self._crashed:
            continue

    def _publish(self) -> None:
        said = self._status()
        if said != self.said:
            self.said = said
            self._place.changed(self)

    def _status(self) -> Json:
        first, containers = ([one.status() for one in group] for group in (self.first, self.containers))
        ready = self._first_done and all(one["ready"] for one in containers)
        phase = self._phase()
        no_longer = {"reason": "PodCompleted"} if phase == "Succeeded" else {}
        wanted = {
            "PodReadyToStartContainers": (not self._error, {"message": self._error} if self._error else {}),
            "Initialized": (self._first_done, {}),
            "ContainersReady": (ready, {} if ready else no_longer or {"reason": "ContainersNotReady"}),
            "Ready": (ready, {} if ready else no_longer or {"reason": "ContainersNotReady"}),
        }
        return {
            "phase": phase,
            "hostIP": self._place.address,
            "hostIPs": [{"ip": self._place.address}, REPLACED],
            "podIP": self._seen_at,
            "podIPs": [{"ip": self._seen_at}, REPLACED],
            "startTime": self._started_at,
            "conditions": [self._condition(name, value, more) for name, (value, more) in wanted.items()],
            "initContainerStatuses": first,
            "containerStatuses": containers,
        }

    def _phase(self) -> str:
        if any(one.is_over and not one.succeeded for one in self.first):
            return "Failed"
        if self._first_done and all(one.is_over and one.start_number for one in self.containers):
            return "Succeeded" if all(one.succeeded for one in self.containers) else "Failed"
        return "Running" if any(one.runs or one.start_number for one in self.containers) else "Pending"

    def _condition(self, name: str, value: bool, more: Json) -> Json:
        said = "True" if value else "False"
        known = self._conditions.get(name)
        if known is None or known["status"] != said:
            known = {"type": name, "status": said, "lastTransitionTime": timestamp()}
        self._conditions[name] = {key: known[key] for key in ("type", "status", "lastTransitionTime")}
        return {**self._conditions[name], "reason": "", "message": "", **more}

    def _as_seen_inside(self, pod: Json) -> Json:
        """Return the pod with real addresses, for the downward API."""
        inside = copy.deepcopy(pod)
        ip = real(self._seen_at)
        inside.setdefault("status", {}).update(podIP=ip, podIPs=[{"ip": ip}], hostIP=self._place.address)
        return inside
