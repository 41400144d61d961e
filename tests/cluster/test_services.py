"""Services on the test nodes: variables as a kubelet sets them, connections that follow the endpoints and stop at a cut."""

import json
import os

import requests

from tests.cluster.api import Json
from tests.cluster.cluster import Cluster
from tests.cluster.waiting import wait_for
from tests.cluster.workloads import ask, environment, path_of, pod, pod_spec, ready_pods, service, stateful_set


def test_connections_follow_the_endpoints(cluster: Cluster, namespace: str) -> None:
    """The Service's selector is a label that moves from pod to pod, as the leader's does."""
    cluster.rest.create(path_of(namespace, "services"), service("lead-er", {"app": "web", "role": "leader"}, port=7000))
    cluster.rest.create(path_of(namespace, "statefulsets"), stateful_set("web", 2, pod_spec()))
    cluster.rest.create(path_of(namespace, "pods"), pod("caller", pod_spec(), app="caller"))
    web, caller = ready_pods(cluster, namespace, "web", 2), ready_pods(cluster, namespace, "caller", 1)[0]
    assert environment(caller)["LEAD_ER_SERVICE_PORT"] == environment(caller)["LEAD_ER_SERVICE_PORT_HTTP"] == "7000"
    assert _reached(caller) == "", "nobody leads yet"
    for leader in (web[0], web[1]):
        for one in web:
            role = "leader" if one is leader else None
            cluster.rest.merge(path_of(namespace, "pods", one["metadata"]["name"]), {"metadata": {"labels": {"role": role}}})
        wait_for(lambda leader=leader: _reached(caller) == leader["metadata"]["name"], "the leader to be reached")
    ask(web[1], "/set", ready="0")
    wait_for(lambda: _reached(caller) == "", "nobody to be reached, since the leader is not ready")


def test_a_cut_node_reaches_no_service_and_waits(cluster: Cluster, namespace: str) -> None:
    cluster.rest.create(path_of(namespace, "services"), service("lead-er", {"app": "web"}, port=7000))
    spec = pod_spec(spec={"nodeSelector": {"kubernetes.io/hostname": "node-0"}})
    cluster.rest.create(path_of(namespace, "statefulsets"), stateful_set("web", 1, spec))
    for name, node in (("near", "node-0"), ("far", "node-1")):
        spec = pod_spec(spec={"nodeSelector": {"kubernetes.io/hostname": node}})
        cluster.rest.create(path_of(namespace, "pods"), pod(name, spec, app=name))
    web = ready_pods(cluster, namespace, "web", 1)[0]
    near, far = (ready_pods(cluster, namespace, name, 1)[0] for name in ("near", "far"))
    for one in (near, far):
        wait_for(lambda one=one: _reached(one) == web["metadata"]["name"], "the service to be reached")
    cluster.nodes["node-1"].cut()
    assert _reached(far, seconds=2.0) == "no answer", "it is out of reach, not refused"
    assert _reached(near) == web["metadata"]["name"]
    cluster.nodes["node-1"].heal()
    assert _reached(far) == web["metadata"]["name"]


def test_pods_know_the_api_server_by_their_nodes_address(cluster: Cluster, namespace: str) -> None:
    spec = pod_spec(spec={"automountServiceAccountToken": True})
    cluster.rest.create(path_of(namespace, "pods"), pod("one", spec, app="one"))
    one = ready_pods(cluster, namespace, "one", 1)[0]
    found = environment(one)
    token = cluster.account_token(namespace, "default")
    url = f"https://{found['KUBERNETES_SERVICE_HOST']}:{found['KUBERNETES_SERVICE_PORT']}/version"
    answer = requests.get(url, headers={"Authorization": f"Bearer {token}"}, verify=str(cluster.plane.ca_file), timeout=10)
    assert answer.json()["gitVersion"].startswith("v1.36")
    assert os.path.basename(found["HOME"]) == "tiny"


def _reached(caller: Json, seconds: float = 10.0) -> str:
    """Return the name of the pod behind the Service's address; empty where the connection is refused."""
    host, port = (environment(caller)[f"LEAD_ER_SERVICE_{what}"] for what in ("HOST", "PORT"))
    try:
        answer = requests.get(f"http://{host}:{port}/env", timeout=seconds, proxies={"http": ""})
    except requests.Timeout:
        return "no answer"
    except requests.ConnectionError:
        return ""
    return json.loads(answer.text)["HOSTNAME"]
