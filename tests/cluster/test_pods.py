"""Pods on the test nodes behave as Kubernetes' real controllers expect of a kubelet's pods."""

import time

from tests.cluster.api import Json
from tests.cluster.cluster import Cluster
from tests.cluster.waiting import stays, wait_for
from tests.cluster.workloads import (
    ask,
    container,
    deployment,
    environment,
    path_of,
    pod,
    pod_spec,
    probe,
    ready_pods,
    stateful_set,
)


def test_a_stateful_set_is_scaled_and_a_deleted_pod_replaced(cluster: Cluster, namespace: str) -> None:
    cluster.rest.create(path_of(namespace, "statefulsets"), stateful_set("web", 3, pod_spec()))
    pods = ready_pods(cluster, namespace, "web", 3)
    assert [one["metadata"]["name"] for one in pods] == ["web-0", "web-1", "web-2"]
    assert len({one["status"]["podIP"] for one in pods}) == 3
    assert all(one["status"]["phase"] == "Running" and one["spec"]["nodeName"] for one in pods)

    cluster.rest.delete(path_of(namespace, "pods", "web-1"))

    def replaced() -> bool:
        now = {one["metadata"]["name"]: one["metadata"]["uid"] for one in ready_pods(cluster, namespace, "web", 3)}
        return now["web-1"] != pods[1]["metadata"]["uid"] and now["web-0"] == pods[0]["metadata"]["uid"]

    wait_for(replaced, "another web-1")
    cluster.kubectl("scale", "statefulset/web", "--replicas=1", namespace=namespace)
    wait_for(lambda: [one["metadata"]["name"] for one in cluster.pods(namespace)] == ["web-0"], "the highest to go")
    web = path_of(namespace, "statefulsets", "web")
    wait_for(lambda: cluster.rest.get(web)["status"]["readyReplicas"] == 1, "the controller to count it")


def test_a_deployment_rolls_over_to_a_new_template(cluster: Cluster, namespace: str) -> None:
    made = deployment("api", 2, pod_spec(env=[{"name": "EDITION", "value": "1"}]))
    cluster.rest.create(path_of(namespace, "deployments"), made)
    assert environment(ready_pods(cluster, namespace, "api", 2)[0])["EDITION"] == "1"
    cluster.kubectl("set", "env", "deployment/api", "EDITION=2", namespace=namespace)
    cluster.kubectl("rollout", "status", "deployment/api", "--timeout=60s", namespace=namespace, seconds=70)
    assert {environment(one)["EDITION"] for one in ready_pods(cluster, namespace, "api", 2)} == {"2"}


def test_sigterm_and_its_grace(cluster: Cluster, namespace: str) -> None:
    """One pod ends by itself within its grace period, another must be killed after it."""
    specs = {
        "willing": pod_spec("--on-term", "1", grace_seconds=30),
        "deaf": pod_spec("--on-term", "ignore", grace_seconds=5),  # time to read its log before it is gone
    }
    for name, spec in specs.items():
        cluster.rest.create(path_of(namespace, "pods"), pod(name, spec, app="w"))
    ready_pods(cluster, namespace, "w", 2)
    started, gone = time.monotonic(), {}
    for name in ("willing", "deaf"):
        cluster.rest.delete(path_of(namespace, "pods", name))
    wait_for(lambda: "told to end, ignore" in cluster.pod_log(namespace, "deaf"), "deaf to hear it")
    while len(gone) < 2 and time.monotonic() - started < 60:
        there = {one["metadata"]["name"] for one in cluster.pods(namespace)}
        gone |= {name: time.monotonic() - started for name in {"willing", "deaf"} - there - gone.keys()}
        time.sleep(0.1)
    assert 1.0 <= gone["willing"] < 25, f"it needed a second of its thirty: {gone}"
    assert 5.0 <= gone["deaf"] < 25, f"it had five seconds: {gone}"


def test_a_crash_restarts_the_container_later_each_time(cluster: Cluster, namespace: str) -> None:
    cluster.rest.create(path_of(namespace, "pods"), pod("one", pod_spec(), app="one"))
    first = ready_pods(cluster, namespace, "one", 1)[0]
    for count in (1, 2):
        ask(first, "/exit", code="3")
        wait_for(lambda count=count: _restarts(cluster, namespace, "one") == count, f"restart {count}")
        ready_pods(cluster, namespace, "one", 1)
    ask(first, "/exit", code="7")
    state = wait_for(lambda: _container(cluster, namespace, "one")["state"].get("waiting"), "a wait before the third")
    assert state["reason"] == "CrashLoopBackOff"
    now = ready_pods(cluster, namespace, "one", 1)[0]
    assert now["metadata"]["uid"] == first["metadata"]["uid"] and _restarts(cluster, namespace, "one") == 3
    assert _container(cluster, namespace, "one")["lastState"]["terminated"]["exitCode"] == 7


def test_a_pod_that_is_not_restarted_ends_with_its_containers(cluster: Cluster, namespace: str) -> None:
    for name, code in (("good", 0), ("bad", 5)):
        spec = {"restartPolicy": "Never", "containers": [_shell(f"echo from {name}; exit {code}")]}
        cluster.rest.create(path_of(namespace, "pods"), pod(name, spec))
    wait_for(lambda: [one["status"].get("phase") for one in cluster.pods(namespace)] == ["Failed", "Succeeded"], "both ends")
    assert _container(cluster, namespace, "bad")["state"]["terminated"]["exitCode"] == 5
    assert cluster.kubectl("logs", "good", namespace=namespace) == "from good\n"


def test_first_containers_run_before_the_others(cluster: Cluster, namespace: str) -> None:
    mount = [{"name": "shared", "mountPath": "/shared"}]
    scripts = {"make": "echo made > /shared/file", "look": "cat /shared/file"}
    first = [{**_shell(script), "name": name, "volumeMounts": mount} for name, script in scripts.items()]
    spec = pod_spec(spec={"initContainers": first, "volumes": [{"name": "shared", "emptyDir": {}}]})
    cluster.rest.create(path_of(namespace, "pods"), pod("one", spec, app="one"))
    ready_pods(cluster, namespace, "one", 1)
    assert cluster.pod_log(namespace, "one", "look") == "made\n"


def test_readiness_liveness_and_startup_probes(cluster: Cluster, namespace: str) -> None:
    patient = probe("/live", timeoutSeconds=10)  # a busy machine may answer late; the pod's own 503 counts at once
    spec = pod_spec(livenessProbe=patient, startupProbe=probe("/live", failureThreshold=60))
    cluster.rest.create(path_of(namespace, "pods"), pod("one", spec, app="one"))
    first = ready_pods(cluster, namespace, "one", 1)[0]
    assert _container(cluster, namespace, "one")["started"] is True
    ask(first, "/set", ready="0")
    wait_for(lambda: not _container(cluster, namespace, "one")["ready"], "the pod to be unready")
    assert _restarts(cluster, namespace, "one") == 0, "readiness restarts nothing"
    ask(first, "/set", live="0")
    wait_for(lambda: _restarts(cluster, namespace, "one") == 1, "liveness to restart it")
    assert ready_pods(cluster, namespace, "one", 1)[0]["metadata"]["uid"] == first["metadata"]["uid"]


def test_probes_of_every_kind(cluster: Cluster, namespace: str) -> None:
    kinds = {
        "by-command": {"exec": {"command": ["test", "-e", "/shared/ready"]}},
        "by-socket": {"tcpSocket": {"port": "http"}},
        "by-grpc": {"grpc": {"port": 7001, "service": "frostline.test"}},
    }
    for name, action in kinds.items():
        spec = pod_spec(
            readinessProbe={**action, "periodSeconds": 1}, volumeMounts=[{"name": "shared", "mountPath": "/shared"}],
            env=[{"name": "SHARED", "value": "/shared"}], spec={"volumes": [{"name": "shared", "emptyDir": {}}]},
        )  # fmt: skip
        cluster.rest.create(path_of(namespace, "pods"), pod(name, spec, app=name))
    ready_pods(cluster, namespace, "by-socket", 1)
    assert stays(lambda: not _container(cluster, namespace, "by-command")["ready"], 1.5), "there is no such file yet"
    assert not _container(cluster, namespace, "by-grpc")["ready"], "it does not speak gRPC"
    waiting = cluster.rest.get(path_of(namespace, "pods", "by-command"))
    ask(waiting, "/write", path=environment(waiting)["SHARED"] + "/ready", text="yes")
    ready_pods(cluster, namespace, "by-command", 1)


def test_a_grpc_probe_passes_where_health_is_served(cluster: Cluster, namespace: str) -> None:
    action = {"grpc": {"port": 7001}, "periodSeconds": 1}
    spec = pod_spec(readinessProbe=action)
    spec["containers"][0]["command"] = ["python", "-c", HEALTHY_GRPC]
    cluster.rest.create(path_of(namespace, "pods"), pod("one", spec, app="one"))
    assert ready_pods(cluster, namespace, "one", 1)


HEALTHY_GRPC = """
import os, grpc
from concurrent.futures import ThreadPoolExecutor
server = grpc.server(ThreadPoolExecutor(1))
check = grpc.unary_unary_rpc_method_handler(lambda request, context: b"\\x08\\x01")
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check})])
server.add_insecure_port(os.environ["FROSTLINE_BIND_HOST"] + ":7001")
server.start()
server.wait_for_termination()
"""


def test_a_pod_that_cannot_start_says_why(cluster: Cluster, namespace: str) -> None:
    spec = pod_spec(env=[{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "k"}}}])
    cluster.rest.create(path_of(namespace, "pods"), pod("one", spec, app="one"))
    reason = wait_for(lambda: _container(cluster, namespace, "one")["state"]["waiting"].get("message"), "a reason")
    assert "absent" in reason
    absent = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "absent"}, "data": {"k": "v"}}
    cluster.rest.create(path_of(namespace, "configmaps"), absent)
    assert environment(ready_pods(cluster, namespace, "one", 1)[0])["X"] == "v"


def _shell(script: str) -> Json:
    made = container()
    made.pop("readinessProbe")
    return made | {"command": ["sh", "-c", script]}


def _container(cluster: Cluster, namespace: str, name: str) -> Json:
    found = cluster.rest.get(path_of(namespace, "pods", name))["status"].get("containerStatuses")
    return found[0] if found else {"state": {"waiting": {}}, "ready": False}


def _restarts(cluster: Cluster, namespace: str, name: str) -> int:
    return _container(cluster, namespace, name).get("restartCount", 0)
