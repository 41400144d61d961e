"""A release as a person accesses it through the API server with a kubeconfig: read, annotate, scale; no more than kubectl can
do."""

import time
from collections.abc import Iterator
from typing import Any

from frostline_contract.annotations import COMMAND, PLAN, REQUESTED_WORKERS
from frostline_contract.worker_id import ordinal_of
from frostline_controller.cluster.kubernetes.api import Api, Json, NotFound
from frostline_controller.run.durable import DurableState, decode_state

POLL_SECONDS = 0.5
PAGE_SECONDS = 120.0


class Release:
    """A Helm release on the cluster: the StatefulSet, its annotations and events, as the command line sees them.

    Methods raise NotFound where the namespace has no such release, and ApiError.

    Args:
        namespace: of the release.
        name: of the release and so of the run.
    """

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self.api, self.namespace, self.name = api, namespace, name
        self._set = f"/apis/apps/v1/namespaces/{namespace}/statefulsets/{name}-trainer"
        self._core = f"/api/v1/namespaces/{namespace}"

    def stateful_set(self) -> Json:
        """Return the trainers' StatefulSet. Raises NotFound with the names of the existing releases, ApiError."""
        try:
            return self.api.get(self._set)
        except NotFound:
            raise NotFound(404, f"no release {self.name} in namespace {self.namespace}: {self._others()}") from None

    def annotations(self) -> dict[str, str]:
        """Return a copy of the StatefulSet's annotations; {} for none."""
        return dict(self.stateful_set()["metadata"].get("annotations") or {})

    def pods(self) -> list[Json]:
        """Return the pods of all roles, trainers in the order of their ordinals."""
        selector = f"app.kubernetes.io/name=frostline,app.kubernetes.io/instance={self.name}"
        found = self.api.get(f"{self._core}/pods", labelSelector=selector)["items"]
        return sorted(found, key=lambda pod: (_role(pod), _ordinal(pod)))

    def events(self) -> list[Json]:
        """Return the Events about the run, oldest first."""
        selector = f"involvedObject.kind=StatefulSet,involvedObject.name={self.name}-trainer"
        found = self.api.get(f"{self._core}/events", fieldSelector=selector)["items"]
        return sorted(found, key=lambda event: (event.get("lastTimestamp") or "", int(event["metadata"]["resourceVersion"])))

    def state(self) -> DurableState | None:
        """Return the controller's durable state of the run; None before a controller has led."""
        text = self.annotations().get(PLAN)
        return decode_state(text) if text else None

    def command(self, text: str) -> None:
        """Send a command to the controller, which removes the annotation when it has read it."""
        self._annotate({COMMAND: text})

    def request_workers(self, workers: int) -> None:
        """Request at most `workers` workers from now on; 0 suspends."""
        self._annotate({REQUESTED_WORKERS: str(workers)})

    def answers(self, before: set[str], seconds: float) -> Iterator[str]:
        """Yield the controller's answers (Events of commands) that are not among the Events named in `before`; wait for the
        first."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            said = [event for event in self.events() if event["metadata"]["name"] not in before and event["reason"] == "Command"]
            if said:
                yield from (str(event["message"]) for event in said)
                return
            time.sleep(POLL_SECONDS)

    def log(self, pod: str, container: str, lines: int) -> str:
        """Return the newest lines that a container of a pod has logged. Raises ApiError where it has not started."""
        return self.api.text(f"{self._core}/pods/{pod}/log", container=container or None, tailLines=lines)

    def page(self, path: str) -> str:
        """Return a page of the leading controller, through the API server. The controller may have to make it first."""
        return self.api.text(f"{self._core}/services/{self.name}-controller:web/proxy{path}", PAGE_SECONDS)

    def _annotate(self, annotations: dict[str, Any]) -> None:
        self.stateful_set()
        self.api.patch(self._set, {"metadata": {"annotations": annotations}})

    def _others(self) -> str:
        """Return the existing releases in words, for a message."""
        selector = "app.kubernetes.io/name=frostline,app.kubernetes.io/component=trainer"
        sets = self.api.get(f"/apis/apps/v1/namespaces/{self.namespace}/statefulsets", labelSelector=selector)["items"]
        names = [found["metadata"]["labels"].get("app.kubernetes.io/instance", "") for found in sets]
        return f"it has {', '.join(names)}" if names else "it has none; give another with -n, or install one"


def _role(pod: Json) -> str:
    return str(pod["metadata"].get("labels", {}).get("app.kubernetes.io/component", ""))


def _ordinal(pod: Json) -> int:
    return ordinal_of(pod["metadata"]["name"])
