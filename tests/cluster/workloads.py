"""Small workloads for tests, and queries to their pods."""

import json
from typing import Any

import requests

from tests.cluster.addresses import real
from tests.cluster.api import Json
from tests.cluster.cluster import Cluster, is_ready
from tests.cluster.waiting import wait_for

PORT = 7001
FAST = {"periodSeconds": 1, "failureThreshold": 2}


def probe(path: str, **more: Any) -> Json:
    """Return a probe that queries the tiny pod every second and gives up at the second failure."""
    return {**FAST, "httpGet": {"path": path, "port": "http"}, **more}


def container(*words: str, **more: Any) -> Json:
    return {
        "name": "tiny",
        "image": "none",
        "command": ["python", "-m", "tests.cluster.tiny_pod", *words],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": probe("/ready"),
        **more,
    }


def pod_spec(*words: str, grace_seconds: int = 2, spec: Json | None = None, **more: Any) -> Json:
    """Return a pod's spec. words: of the tiny pod. more: of its container."""
    made = {"containers": [container(*words, **more)], "terminationGracePeriodSeconds": grace_seconds}
    return made | {"automountServiceAccountToken": False} | (spec or {})


def pod(name: str, spec: Json, **labels: str) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}


def stateful_set(name: str, replicas: int, spec: Json, annotations: dict[str, str] | None = None) -> Json:
    """Return a StatefulSet like the chart's trainers, with replicas."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name} | ({"annotations": annotations} if annotations else {}),
        "spec": {
            "serviceName": name,
            "replicas": replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def deployment(name: str, replicas: int, spec: Json) -> Json:
    labels = {"app": name}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def service(name: str, selector: dict[str, str], port: int = PORT) -> Json:
    ports = [{"name": "http", "port": port, "targetPort": "http"}]
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": {"selector": selector, "ports": ports}}


def path_of(namespace: str, kind: str, name: str = "") -> str:
    """Return the path of an object, or of the list of its kind."""
    groups = {"statefulsets": "apps/v1", "deployments": "apps/v1", "leases": "coordination.k8s.io/v1"}
    root = f"/apis/{groups[kind]}" if kind in groups else "/api/v1"
    return f"{root}/namespaces/{namespace}/{kind}" + (f"/{name}" if name else "")


def ready_pods(cluster: Cluster, namespace: str, app: str, count: int, seconds: float = 180.0) -> list[Json]:
    """Wait until exactly `count` pods of `app` exist, all of them ready and none being deleted. Raises TimeoutError."""

    def look() -> list[Json]:
        pods = cluster.pods(namespace, f"app={app}")
        good = [one for one in pods if is_ready(one) and not one["metadata"].get("deletionTimestamp")]
        return good if len(good) == len(pods) == count else []

    try:
        return wait_for(look, f"{count} ready pods of {app}", seconds)
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{cluster.described(namespace)}") from error


def ask(of: Json, what: str, /, **query: str) -> str:
    """Return a tiny pod's answer. Raises requests.RequestException."""
    answer = requests.get(f"http://{real(of['status']['podIP'])}:{PORT}{what}", params=query, timeout=5, proxies={"http": ""})
    answer.raise_for_status()
    return answer.text


def environment(of: Json) -> dict[str, str]:
    return json.loads(ask(of, "/env"))
