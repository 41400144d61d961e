"""An API server that is away, slow, or full of errors during a run: no wrong decision, no restart, the same bits."""

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from frostline_contract.annotations import COMMAND
from tests.cluster.cluster import Cluster
from tests.cluster.releases import LONG_LEASE, SMALL, Release, long
from tests.cluster.trouble import Mood, TroubledApi
from tests.cluster.waiting import wait_for
from tests.wide_rows import wide_rows


@pytest.mark.wide
def test_a_restarted_api_server_costs_nothing(release: Release) -> None:
    """The outage is shorter than the Lease allows: the leader stays leader."""
    release.install(**long(), kubernetes=LONG_LEASE)
    release.wait_for_step(10)
    leader = release.leader()
    release.cluster.plane.stop_api_server(signal.SIGKILL)
    stopped_at = release.step()
    time.sleep(4.0)
    wait_for(lambda: release.step() > stopped_at, "steps without an API server")
    release.cluster.plane.start_api_server()
    release.wait_for_state("completed")
    assert release.leader() == leader
    assert not any(release.restarts().values())
    assert not [line for line in release.lines("events.jsonl") if line["kind"] == "failure"]
    assert release.result()["digest"] == release.undisturbed_digest()


def test_a_frozen_api_server_ends_the_leader_and_training_goes_on(release: Release) -> None:
    """The outage outlasts the Lease: the leader stops acting; later one controller leads again, and nothing is lost."""
    release.install(**long())
    release.wait_for_step(10)
    release.cluster.plane.freeze_api_server(True)
    try:
        before = release.step()
        time.sleep(SMALL["kubernetes"]["lease"]["duration_seconds"] + 4.0)
    finally:
        release.cluster.plane.freeze_api_server(False)
    release.wait_for_step(before + 1)
    release.wait_for_state("completed")
    assert release.result()["digest"] == release.undisturbed_digest()


def test_commands_that_come_while_somebody_writes_all_the_time(release: Release) -> None:
    """Conflicts: another writer changes other annotations without a pause."""
    release.install(**long())
    release.wait_for_step(5)
    path = f"/apis/apps/v1/namespaces/{release.namespace}/statefulsets/digits-trainer"
    stop = threading.Event()

    def scribble() -> None:
        number = 0
        while not stop.wait(0.02):
            number += 1
            release.cluster.rest.merge(path, {"metadata": {"annotations": {"example.com/scribble": str(number)}}})

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        release.cluster.kubectl("annotate", "statefulset", "digits-trainer", f"{COMMAND}=checkpoint", namespace=release.namespace)
        wait_for(lambda: release.said("checkpoint by command"), "the answer")
        wait_for(lambda: COMMAND not in release.annotations(), "the command to be taken")
        release.wait_for_state("completed")
    finally:
        stop.set()
        writer.join()
    assert len(release.said("checkpoint by command")) == 1


@pytest.fixture
def bad_day(cluster: Cluster, tmp_path: Path) -> Iterator[TroubledApi]:
    """A faulty proxy through which all pods of a run call the API server; nodes and people call it directly."""
    trouble = TroubledApi(cluster.plane.port, cluster.plane.authority, tmp_path, Mood(), seed=1)
    address = {"KUBERNETES_SERVICE_HOST": trouble.host, "KUBERNETES_SERVICE_PORT": str(trouble.port)}
    for node in cluster.nodes.values():
        node.options.variables.update(address)
    yield trouble
    for node in cluster.nodes.values():
        for name in address:
            del node.options.variables[name]
    trouble.stop()


def test_a_bad_day_of_the_api_server(bad_day: TroubledApi, release: Release) -> None:
    """Every fifth request is refused, answers are slow or lost, no watch lives for three seconds; a pod is replaced meanwhile."""
    release.install(**long(), kubernetes=LONG_LEASE)
    release.wait_for_step(10, 180)
    leader = release.leader()
    release.cluster.kubectl("annotate", "statefulset", "digits-trainer", f"{COMMAND}=checkpoint", namespace=release.namespace)
    release.cluster.kubectl("delete", "pod", "digits-trainer-2", "--wait=false", namespace=release.namespace)
    wait_for(lambda: COMMAND not in release.annotations(), "the command to be taken")
    release.wait_for_state("completed")
    assert release.leader() == leader
    assert not any(release.restarts().values()), f"a refused request is no reason to end: {release.previous_logs()}"
    assert {"409", "410", "429", "500", "503", "lost", "watches broken off"} <= bad_day.counts.keys()
    decided = [line["number"] for line in release.lines("plans.jsonl") if line["kind"] == "decision"]
    assert decided == sorted(set(decided))
    assert release.result()["digest"] == release.undisturbed_digest()


@pytest.mark.parametrize("how", wide_rows(("cut", "freeze", "kill"), wide=("cut", "freeze")))
def test_a_node_that_is_lost(release: Release, how: str) -> None:
    """The node's trainers leave the plan; their pods are made anew elsewhere once the node is known to be gone, or return."""
    release.install(**long())
    release.wait_for_step(10)
    pods = release.pods("trainer")
    led_from = release.leading_pod()["spec"]["nodeName"]
    node = next(pod["spec"]["nodeName"] for pod in pods if pod["spec"]["nodeName"] != led_from)
    getattr(release.cluster.nodes[node], how)()
    before = release.step()
    release.wait_for_step(before + 5, 90)
    release.cluster.nodes[node].heal()
    release.wait_for_state("completed")
    assert release.result()["digest"] == release.undisturbed_digest()


def test_a_pod_that_is_deleted_by_force_while_its_process_lives_does_no_harm(release: Release) -> None:
    """The pod's node is cut off: the old process is not ended, while another pod has its name."""
    release.install(**long())
    release.wait_for_step(10)
    led_from = release.leading_pod()["spec"]["nodeName"]
    pod = next(pod for pod in release.pods("trainer") if pod["spec"]["nodeName"] != led_from)
    name, uid, node = pod["metadata"]["name"], pod["metadata"]["uid"], release.cluster.nodes[pod["spec"]["nodeName"]]
    node.cut()
    release.cluster.kubectl("delete", "pod", name, "--grace-period=0", "--force", namespace=release.namespace)
    wait_for(
        lambda: any(one["metadata"]["name"] == name and one["metadata"]["uid"] != uid for one in release.pods("trainer")),
        "another pod of its name",
    )
    before = release.step()
    release.wait_for_step(before + 5, 90)
    node.heal()
    release.wait_for_state("completed")
    assert release.result()["digest"] == release.undisturbed_digest()
