"""The cluster's reaction to a node that is cut off, frozen or gone, and the node's full return afterwards."""

import time

import pytest
import requests

from tests.cluster.api import Json
from tests.cluster.cluster import Cluster, is_ready
from tests.cluster.nodes import Node
from tests.cluster.waiting import stays, wait_for
from tests.cluster.workloads import ask, path_of, pod_spec, ready_pods, stateful_set

FOREVER = [
    {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute"} for what in ("not-ready", "unreachable")
]
SOON = [{**one, "tolerationSeconds": 1} for one in FOREVER]


def test_pods_of_a_cut_node_are_marked_and_heal(cluster: Cluster, namespace: str) -> None:
    pods = _pods(cluster, namespace, FOREVER)
    node = _node_of(cluster, pods[0])
    node.cut()
    cluster.wait_for_node(node.name, "Unknown")
    wait_for(lambda: not is_ready(_now(cluster, pods[0])), "its pod to be marked")
    assert ask(pods[0], "/live") == "1", "its processes know nothing of it"
    node.heal()
    cluster.wait_for_node(node.name, "True")
    assert _uids(ready_pods(cluster, namespace, "web", 3)) == _uids(pods), "the same pods go on"


def test_pods_of_a_frozen_node_stand_still_and_heal(cluster: Cluster, namespace: str) -> None:
    pods = _pods(cluster, namespace, FOREVER)
    node = _node_of(cluster, pods[0])
    node.freeze()
    with pytest.raises(requests.Timeout):
        ask(pods[0], "/live")
    cluster.wait_for_node(node.name, "Unknown")
    wait_for(lambda: not is_ready(_now(cluster, pods[0])), "its pod to be marked")
    node.heal()
    cluster.wait_for_node(node.name, "True")
    assert _uids(ready_pods(cluster, namespace, "web", 3)) == _uids(pods)
    assert all(one["status"]["containerStatuses"][0]["restartCount"] == 0 for one in cluster.pods(namespace))


def test_a_pod_of_a_lost_node_is_deleted_but_not_replaced_until_the_node_is_back(cluster: Cluster, namespace: str) -> None:
    """A StatefulSet never runs two pods of one name: the old pod stays Terminating until its end is reported."""
    pods = _pods(cluster, namespace, SOON)
    node = _node_of(cluster, pods[0])
    node.cut()
    wait_for(lambda: _now(cluster, pods[0])["metadata"].get("deletionTimestamp"), "its pod to be deleted")
    assert stays(lambda: _now(cluster, pods[0])["metadata"]["uid"] == pods[0]["metadata"]["uid"], 3.0)
    assert ask(pods[0], "/live") == "1"
    node.heal()
    wait_for(lambda: _now(cluster, pods[0])["metadata"]["uid"] != pods[0]["metadata"]["uid"], "another pod of its name")
    ready_pods(cluster, namespace, "web", 3)
    with pytest.raises(requests.ConnectionError):
        ask(pods[0], "/live")


def test_a_forced_deletion_replaces_it_at_once_and_two_run(cluster: Cluster, namespace: str) -> None:
    """The reason why pods must be fenced: the cut node's process lives on beside its successor."""
    pods = _pods(cluster, namespace, FOREVER)
    node = _node_of(cluster, pods[0])
    node.cut()
    cluster.wait_for_node(node.name, "Unknown")
    cluster.rest.delete(path_of(namespace, "pods", pods[0]["metadata"]["name"]), gracePeriodSeconds=0)
    successor = next(one for one in ready_pods(cluster, namespace, "web", 3) if _same_name(one, pods[0]))
    assert ask(pods[0], "/live") == ask(successor, "/live") == "1"
    node.heal()

    def old_one_is_gone() -> bool:
        try:
            return not ask(pods[0], "/live")
        except requests.ConnectionError:
            return True

    wait_for(old_one_is_gone, "the node to end what nobody knows any more")
    assert _uids(ready_pods(cluster, namespace, "web", 3)) == {successor["metadata"]["uid"]} | _uids(pods[1:])


def test_a_machine_that_was_off_starts_its_pods_anew(cluster: Cluster, namespace: str) -> None:
    pods = _pods(cluster, namespace, FOREVER)
    node = _node_of(cluster, pods[0])
    node.kill()
    with pytest.raises(requests.ConnectionError):
        ask(pods[0], "/live")
    cluster.wait_for_node(node.name, "Unknown")
    started = time.time()
    node.boot()
    now = wait_for(lambda: _restarted(ready_pods(cluster, namespace, "web", 3), pods[0]), "its pod to start again")
    assert now["metadata"]["uid"] == pods[0]["metadata"]["uid"], f"the same pod, restarted after {started:.0f}"


def _pods(cluster: Cluster, namespace: str, tolerations: list[Json]) -> list[Json]:
    """Return the pods, one on each node."""
    spread = {
        "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}}, "nodeTaintsPolicy": "Honor",
    }  # fmt: skip
    spec = pod_spec(spec={"tolerations": tolerations, "topologySpreadConstraints": [spread]})
    cluster.rest.create(path_of(namespace, "statefulsets"), stateful_set("web", 3, spec))
    pods = ready_pods(cluster, namespace, "web", 3)
    assert len({one["spec"]["nodeName"] for one in pods}) == 3
    return pods


def _node_of(cluster: Cluster, pod: Json) -> Node:
    return cluster.nodes[pod["spec"]["nodeName"]]


def _now(cluster: Cluster, pod: Json) -> Json:
    return cluster.rest.get(path_of(pod["metadata"]["namespace"], "pods", pod["metadata"]["name"]))


def _uids(pods: list[Json]) -> set[str]:
    return {one["metadata"]["uid"] for one in pods}


def _same_name(one: Json, other: Json) -> bool:
    return one["metadata"]["name"] == other["metadata"]["name"]


def _restarted(pods: list[Json], pod: Json) -> Json | None:
    now = next(one for one in pods if _same_name(one, pod))
    return now if now["status"]["containerStatuses"][0]["restartCount"] == 1 else None
