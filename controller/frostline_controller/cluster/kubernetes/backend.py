"""The trainer StatefulSet of one run on a Kubernetes cluster, as the controller sees and changes it (docs/protocols.md 5, 10)."""

import datetime
import logging
import random
import threading
import time
import uuid
from collections.abc import Callable

from frostline_controller.cluster.backend import ClusterState, PodInfo, require_annotations, require_replicas
from frostline_controller.cluster.kubernetes.api import Api, ApiError, Changed, Json, NotFound
from frostline_controller.cluster.kubernetes.object_cache import ObjectCache

log = logging.getLogger(__name__)

FIELD_MANAGER = "frostline-controller"
"""The field manager that owns spec.replicas, whatever installs the chart."""
ANNOTATIONS, REPLICAS = "/metadata/annotations", "/spec/replicas"
FIRST_LIST_SECONDS = 20.0
PATCH_TRIES, PATCH_WAIT_SECONDS = 5, 0.2


class KubernetesBackend:
    """ClusterBackend over one StatefulSet.

    Reads are served from watches, so that they cost the API server nothing; this process's own writes are visible to its reads at
    once.

    Args:
        namespace, name: of the StatefulSet.
        selector: labels of the pods, as "a=b,c=d".
    """

    def __init__(self, api: Api, namespace: str, name: str, selector: str) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self._path = f"/apis/apps/v1/namespaces/{namespace}/statefulsets"
        self._pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self._changed = threading.Event()
        self._sets = ObjectCache(api, self._path, {"fieldSelector": f"metadata.name={name}"}, self._changed.set)
        self._pods = ObjectCache(api, self._pods_path, {"labelSelector": selector}, self._changed.set)
        for cache in (self._sets, self._pods):
            cache.start()

    def read(self) -> ClusterState:
        """Return the state last received.

        Raises NotFound where there is no such StatefulSet, ApiError before the API server's first answer.
        """
        self._changed.clear()
        found = self._stateful_set()
        pods = self._pods.objects(FIRST_LIST_SECONDS).values()
        return ClusterState(
            annotations=dict(_annotations_of(found)),
            spec_replicas=_replicas_of(found),
            resource_version=int(found["metadata"]["resourceVersion"]),
            pods=sorted((_pod_info(pod) for pod in pods if _owner(pod) == self._name), key=lambda pod: pod.ordinal),
        )

    def has_pod(self, name: str, uid: str) -> bool:
        """Whether this run has the pod with this name and uid. A pod that no watch has reported yet is requested. Raises
        ApiError."""
        known = self._pods.objects(FIRST_LIST_SECONDS).get(name)
        if known is not None and known["metadata"]["uid"] == uid:
            return True
        listed = self._api.get(self._pods_path, fieldSelector=f"metadata.name={name}")["items"]
        if not listed or _owner(listed[0]) != self._name:
            return False
        self._pods.put(listed[0])
        return bool(listed[0]["metadata"]["uid"] == uid)

    def patch_annotations(self, changes: dict[str, str | None], test: dict[str, str | None]) -> None:
        self._patch(
            lambda held: _patch_of_annotations(_annotations_of(held), changes, test),
            lambda found: require_annotations(_annotations_of(found), test),
        )

    def scale(self, replicas: int, test: int | None = None) -> None:
        if replicas < 0:
            raise ValueError(f"replicas is {replicas}; it must be at least 0")
        self._patch(
            lambda held: _patch_of_scale(replicas, test),
            lambda found: require_replicas(_replicas_of(found), test),
            subresource="/scale",
        )

    def _patch(self, make: Callable[[Json], list[Json]], require: Callable[[Json], None], subresource: str = "") -> None:
        """Patch the StatefulSet. A refused patch whose tests all hold is tried again, since other processes write all the time.

        Args:
            make: returns the JSON patch for the StatefulSet that was received last.
            require: raises Conflict where a test of the patch does not hold for the StatefulSet as it is now.
            subresource: the part of the StatefulSet that the patch is for, as the end of its path; empty: the StatefulSet itself.
        """
        path = f"{self._path}/{self._name}"
        for tries_left in reversed(range(PATCH_TRIES)):
            try:
                answer = self._api.patch(f"{path}{subresource}", make(self._stateful_set()), fieldManager=FIELD_MANAGER)
                self._sets.put(self._api.get(path) if subresource else answer)
                return
            except Changed:
                found = self._api.get(path)
                self._sets.put(found)  # the next read returns the state that refused the patch
                require(found)
                if not tries_left:
                    raise
            time.sleep(random.uniform(0.5, 1.0) * PATCH_WAIT_SECONDS)

    def delete_pod(self, name: str, grace_seconds: float) -> None:
        pod = self._pods.objects(FIRST_LIST_SECONDS).get(name)
        if pod is None:
            return
        options: Json = {"gracePeriodSeconds": round(grace_seconds), "preconditions": {"uid": pod["metadata"]["uid"]}}
        try:
            self._api.delete(f"{self._pods_path}/{name}", options)
        except (NotFound, Changed) as error:  # the pod is gone, or another pod has its name
            log.info("pod not deleted pod=%s reason=%s", name, error)

    def changed(self) -> bool:
        return self._changed.is_set()

    def emit_event(self, kind: str, reason: str, message: str) -> None:
        """Write an Event about the StatefulSet. A failure is only logged, since an Event is no state."""
        try:
            self._api.create(f"/api/v1/namespaces/{self._namespace}/events", self._event(kind, reason, message))
        except ApiError as error:
            log.warning("event not written reason=%s error=%s", reason, error)

    def _event(self, kind: str, reason: str, message: str) -> Json:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        found = self._stateful_set()
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{self._name}.{uuid.uuid4().hex[:16]}", "namespace": self._namespace},
            "involvedObject": {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "namespace": self._namespace,
                "name": self._name,
                "uid": found["metadata"]["uid"],
            },
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": "",
        }

    def close(self) -> None:
        """End the watches and close the connections."""
        for cache in (self._sets, self._pods):
            cache.stop()
        self._api.close()

    def _stateful_set(self) -> Json:
        found = self._sets.objects(FIRST_LIST_SECONDS).get(self._name)
        if found is None:
            raise NotFound(404, f"there is no StatefulSet {self._name} in namespace {self._namespace}")
        return found


def _annotations_of(stateful_set: Json) -> dict[str, str]:
    return stateful_set["metadata"].get("annotations") or {}


def _replicas_of(stateful_set: Json) -> int:
    return int(stateful_set["spec"].get("replicas", 1))


def _patch_of_annotations(held: dict[str, str], changes: dict[str, str | None], test: dict[str, str | None]) -> list[Json]:
    """Return the JSON patch of changes to annotations.

    Args:
        held: the existing annotations, as far as is known.
        changes: new values; None removes an annotation.
        test: values that must still hold, else the patch is refused; None: the annotation must not exist.
    """
    patch: list[Json] = []
    if not held:  # nothing below it can be tested; test that it is empty, so that no other writer's annotations are lost
        patch.append({"op": "test", "path": ANNOTATIONS, "value": None})
        patch.append({"op": "add", "path": ANNOTATIONS, "value": {}})
    patch += [{"op": "test", "path": _annotation(key), "value": value} for key, value in test.items()]
    for key, value in changes.items():
        if value is not None:
            patch.append({"op": "add", "path": _annotation(key), "value": value})
        elif key in held:
            patch.append({"op": "remove", "path": _annotation(key)})
    return patch


def _patch_of_scale(replicas: int, test: int | None) -> list[Json]:
    """Return the JSON patch of a Scale, with the same arguments as `scale`. A Scale in JSON leaves out a number of 0."""
    tests: list[Json] = [] if test is None else [{"op": "test", "path": REPLICAS, "value": test or None}]
    return [*tests, {"op": "add", "path": REPLICAS, "value": replicas}]


def _annotation(key: str) -> str:
    """Return the path of an annotation as a JSON pointer."""
    return f"{ANNOTATIONS}/" + key.replace("~", "~0").replace("/", "~1")


def _owner(pod: Json) -> str:
    owners = pod["metadata"].get("ownerReferences") or []
    return next((owner["name"] for owner in owners if owner.get("controller")), "")


def _pod_info(pod: Json) -> PodInfo:
    status = pod.get("status", {})
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or []}
    return PodInfo(
        name=pod["metadata"]["name"],
        uid=pod["metadata"]["uid"],
        node=pod["spec"].get("nodeName", ""),
        phase=status.get("phase", "Pending"),
        started_at=_unix_seconds(status.get("startTime")),
        ready=conditions.get("Ready") == "True" and not pod["metadata"].get("deletionTimestamp"),
    )


def _unix_seconds(text: str | None) -> float:
    return datetime.datetime.fromisoformat(text).timestamp() if text else 0.0
