"""A replacement of the kubelet for the control plane: one life of a node's agent, from boot to crash.

It registers the node, renews its Lease, follows the pods that are bound to it, runs them (`pod_life`) and writes their status.
"""

import contextlib
import datetime
import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.api import TROUBLE, Follower, Json, Refused, Rest
from tests.cluster.container_life import timestamp
from tests.cluster.containers import log_of
from tests.cluster.pod_life import Place, PodLife

log = logging.getLogger(__name__)

BEAT_SECONDS = 1.0
BEATS_A_STATUS = 4
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
GONE = (404, 409)
"""Statuses of an object that no longer exists, or of another with its name."""


class NodeAgent:
    """The agent of one node. node: its object as it registers, whose status conditions it writes repeatedly.

    addresses: of its pods, given out in turn. Everything waits while placed.running is cleared (the node is frozen).
    """

    def __init__(self, rest: Rest, node: Json, addresses: list[str], placed: Place) -> None:
        self._rest, self._node, self._name = rest, node, node["metadata"]["name"]
        self._addresses, self._place = addresses, placed
        self._crashed = threading.Event()
        self._lock = threading.Lock()
        self._pods: dict[str, PodLife] = {}
        self._count = 0
        self._changed: dict[str, PodLife] = {}
        self._news = threading.Event()
        self._follower = Follower(rest, "/api/v1/pods", self._take, fieldSelector=f"spec.nodeName={self._name}")
        self._threads = [
            threading.Thread(target=one, name=f"{one.__name__} {self._name}", daemon=True) for one in (self._beat, self._write)
        ]

    def start(self) -> None:
        self._follower.start()
        for thread in self._threads:
            thread.start()

    def crash(self) -> None:
        """Stop all work without any message. The caller ends the processes."""
        self._crashed.set()
        self._follower.stop()
        self._news.set()
        with self._lock:
            lives = list(self._pods.values())
        for life in lives:
            life.crash()
        for life in lives:
            life.join()

    def changed(self, life: PodLife) -> None:
        """Record that a pod's status may differ from the one written last."""
        with self._lock:
            self._changed[life.pod["metadata"]["uid"]] = life
        self._news.set()

    def log_of(self, namespace: str, pod: str, container: str, previous: bool) -> tuple[Path, bool] | None:
        """Return the file with a container's output, or with that of its previous start, and whether it may still grow."""
        with self._lock:
            lives = [one for one in self._pods.values() if _names(one.pod) == (namespace, pod)]
        for life in lives:
            for one in (*life.first, *life.containers):
                number = one.start_number - (2 if previous else 1)
                if one.spec["name"] == container and number >= 0:
                    return log_of(life.folder, container, number), one.runs and not previous
        return None

    def _beat(self) -> None:
        beats, last = 0, 0.0
        while not self._crashed.wait(BEAT_SECONDS):
            self._place.running.wait()
            try:
                late = time.monotonic() - last > 2.5 * BEAT_SECONDS
                if beats == 0:
                    self._register()
                self._renew()
                if late or beats % BEATS_A_STATUS == 0:
                    self._rest.strategic(f"/api/v1/nodes/{self._name}/status", {"status": {"conditions": conditions()}})
                beats, last = beats + 1, time.monotonic()
            except TROUBLE as error:
                log.info("heartbeat failed node=%s error=%s", self._name, error)
                beats = 0  # the Node object may be gone; a kubelet registers again

    def _register(self) -> None:
        self._rest.create_missing("/api/v1/nodes", {key: self._node[key] for key in ("apiVersion", "kind", "metadata", "spec")})
        status = {**self._node["status"], "conditions": conditions()}
        self._rest.strategic(f"/api/v1/nodes/{self._name}/status", {"status": status})

    def _renew(self) -> None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": self._name, "leaseDurationSeconds": 40, "renewTime": now}
        try:
            self._rest.merge(f"{LEASES}/{self._name}", {"spec": spec})
        except Refused as error:
            if error.status != 404:
                raise
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self._name}, "spec": spec}
            self._rest.create_missing(LEASES, lease)

    def _take(self, pod: Json, gone: bool) -> None:
        """Take a pod from the follower: new, changed, or gone."""
        self._place.running.wait()
        if self._crashed.is_set():
            return
        uid = pod["metadata"]["uid"]
        with self._lock:
            life = self._pods.get(uid)
        if gone:
            if life is not None and not life.over:
                life.vanish()
        elif life is not None:
            life.update(pod)
            if life.said and _differs(pod, life.said):
                self.changed(life)
        elif pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            self._run(uid, pod)

    def _run(self, uid: str, pod: Json) -> None:
        with self._lock:
            life = PodLife(self._place, pod, self._addresses[self._count % len(self._addresses)])
            self._count += 1
            self._pods[uid] = life
        life.inherit()
        life.update(pod)
        life.start()

    def _write(self) -> None:
        """Write changed statuses to the API server, repeatedly until each is accepted."""
        while not self._crashed.is_set():
            self._news.wait()
            self._news.clear()
            self._place.running.wait()
            with self._lock:
                changed, self._changed = self._changed, {}
            for uid, life in changed.items():
                try:
                    self._publish(life)
                except TROUBLE as error:
                    log.info("status not written pod=%s error=%s", life.pod["metadata"]["name"], error)
                    with self._lock:
                        self._changed.setdefault(uid, life)
            if self._changed and not self._crashed.wait(0.5):
                self._news.set()

    def _publish(self, life: PodLife) -> None:
        metadata = life.pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        is_over = life.over
        with _gone_is_fine():
            if not life.vanished:
                self._rest.strategic(f"{path}/status", {"metadata": {"uid": metadata["uid"]}, "status": life.said})
        if not is_over:
            return
        with _gone_is_fine():
            if not life.vanished:
                self._rest.delete(path, gracePeriodSeconds=0, preconditions={"uid": metadata["uid"]})
        shutil.rmtree(life.folder / "v", ignore_errors=True)
        with self._lock:
            self._pods.pop(metadata["uid"], None)


def conditions() -> list[Json]:
    """Return the conditions of a healthy node."""
    now = timestamp()
    said = {"Ready": "True", "MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False"}
    return [
        {"type": kind, "status": value, "reason": "Test", "message": "a test node", "lastHeartbeatTime": now}
        for kind, value in said.items()
    ]


def _differs(pod: Json, said: Json) -> bool:
    """Whether another process has written another status: the node controller does so for lost nodes."""
    held = {one["type"]: one["status"] for one in pod.get("status", {}).get("conditions") or ()}
    return any(held.get(one["type"]) != one["status"] for one in said["conditions"])


def _names(pod: Json) -> tuple[str, str]:
    return pod["metadata"]["namespace"], pod["metadata"]["name"]


@contextlib.contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except Refused as error:
        if error.status not in GONE:
            raise
