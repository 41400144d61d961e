"""The test cluster's control plane itself: real versions, real rules, and agents that survive its absence."""

import json

import pytest

from tests.cluster.api import Refused
from tests.cluster.binaries import KUBERNETES_VERSION
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import GUEST
from tests.cluster.waiting import wait_for
from tests.cluster.workloads import ask, path_of, pod_spec, ready_pods, stateful_set


def test_versions_nodes_and_kubectl(cluster: Cluster) -> None:
    assert cluster.rest.get("/version")["gitVersion"] == KUBERNETES_VERSION
    nodes = json.loads(cluster.kubectl("get", "nodes", "-o", "json"))["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["node-0", "node-1", "node-2"]
    assert all("node.kubernetes.io/not-ready" not in str(node["spec"].get("taints")) for node in nodes)


def test_a_user_without_a_role_may_do_nothing(cluster: Cluster, namespace: str) -> None:
    guest = cluster.plane.rest(GUEST)
    for ask_for in (lambda: guest.get(path_of(namespace, "pods")), lambda: guest.delete(path_of(namespace, "pods", "x"))):
        with pytest.raises(Refused) as refused:
            ask_for()
        assert refused.value.status == 403


def test_pods_and_agents_survive_an_api_server_restart(cluster: Cluster, namespace: str) -> None:
    cluster.rest.create(path_of(namespace, "statefulsets"), stateful_set("web", 2, pod_spec()))
    before = ready_pods(cluster, namespace, "web", 2)
    cluster.plane.stop_api_server()
    ask(before[0], "/set", ready="0")
    cluster.plane.start_api_server()

    def first_is_unready() -> bool:
        status = cluster.rest.get(path_of(namespace, "pods", "web-0"))["status"]
        return any(one["type"] == "Ready" and one["status"] == "False" for one in status["conditions"])

    wait_for(first_is_unready, "what changed meanwhile to be told")
    ask(before[0], "/set", ready="1")
    after = ready_pods(cluster, namespace, "web", 2)
    assert [one["metadata"]["uid"] for one in after] == [one["metadata"]["uid"] for one in before]
    assert all(one["status"]["containerStatuses"][0]["restartCount"] == 0 for one in after)
    cluster.rest.merge(path_of(namespace, "statefulsets", "web"), {"spec": {"replicas": 3}})
    ready_pods(cluster, namespace, "web", 3)


def test_requests_are_audited(cluster: Cluster, namespace: str) -> None:
    cluster.rest.get(path_of(namespace, "configmaps", "kube-root-ca.crt"))

    def found() -> bool:
        ours = [one for one in cluster.plane.audited() if namespace in one["requestURI"]]
        asked = [one for one in ours if one["user"]["username"] == "admin" and one["verb"] == "get"]
        return any(one.get("objectRef", {}).get("name") == "kube-root-ca.crt" for one in asked)

    assert wait_for(found, "our request in the audit log", 20)
