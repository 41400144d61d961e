"""The controller's backend on a real API server, with only the rights that the chart grants."""

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from frostline_controller.cluster.backend import Conflict
from frostline_controller.cluster.kubernetes.api import Api, ApiError, Changed, NotFound
from frostline_controller.cluster.kubernetes.backend import FIELD_MANAGER, KubernetesBackend
from frostline_controller.faults.breakable import Breakable
from tests.cluster.api import Json
from tests.cluster.cluster import Cluster
from tests.cluster.controller_account import TRAINER, grant, in_cluster_api
from tests.cluster.namespaces import WithNamespaces
from tests.cluster.waiting import wait_for
from tests.cluster.workloads import path_of, pod_spec, ready_pods, stateful_set
from tests.in_time import fastest_of_three, in_time

PLAN = "frostline.io/plan"
Server = WithNamespaces


@pytest.fixture
def api(api_server: Server, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    grant(api_server, namespace)
    api = in_cluster_api(api_server, namespace, tmp_path / "account", monkeypatch)
    yield api
    api.close()


@pytest.fixture
def start(api_server: Server, api: Api, namespace: str) -> Iterator[Callable[..., KubernetesBackend]]:
    """Return start(replicas, **annotations), which makes the StatefulSet and a backend for it."""
    started: list[KubernetesBackend] = []

    def make(replicas: int = 0, annotations: dict[str, str] | None = None) -> KubernetesBackend:
        spec = stateful_set(TRAINER, replicas, pod_spec(), annotations)
        api_server.rest.create(path_of(namespace, "statefulsets"), spec)
        started.append(KubernetesBackend(api, namespace, TRAINER, f"app={TRAINER}"))
        return started[-1]

    yield make
    for backend in started:
        backend.close()


def test_annotations_change_only_where_they_are_as_expected(start: Callable[..., KubernetesBackend]) -> None:
    backend = start(annotations={"other": "stays"})
    backend.patch_annotations({PLAN: "1"}, {PLAN: None})
    assert backend.read().annotations == {"other": "stays", PLAN: "1"}, "what was written is read at once"
    with pytest.raises(Conflict):
        backend.patch_annotations({PLAN: "2", "more": "x"}, {PLAN: None})
    with pytest.raises(Conflict):
        backend.patch_annotations({PLAN: "2"}, {PLAN: "0"})
    assert backend.read().annotations == {"other": "stays", PLAN: "1"}, "a refused patch changes nothing"
    backend.patch_annotations({PLAN: "2", "more/x": "y"}, {PLAN: "1", "absent": None})
    backend.patch_annotations({PLAN: None, "never": None}, {PLAN: "2"})
    assert backend.read().annotations == {"other": "stays", "more/x": "y"}


def test_annotations_where_there_are_none_yet(start: Callable[..., KubernetesBackend]) -> None:
    backend = start()
    with pytest.raises(Conflict):
        backend.patch_annotations({PLAN: "2"}, {PLAN: "1"})
    backend.patch_annotations({PLAN: "1"}, {PLAN: None})
    assert backend.read().annotations == {PLAN: "1"}


def test_first_annotations_never_wipe_out_what_another_has_just_written(
    start: Callable[..., KubernetesBackend], api_server: Server, namespace: str
) -> None:
    backend = start()
    path = path_of(namespace, "statefulsets", TRAINER)
    backend.read()
    api_server.rest.merge(path, {"metadata": {"annotations": {"theirs": "1"}}})
    backend.patch_annotations({PLAN: "1"}, {PLAN: None})
    assert api_server.rest.get(path)["metadata"]["annotations"] == {"theirs": "1", PLAN: "1"}


def test_what_is_to_be_removed_may_have_gone_meanwhile(
    start: Callable[..., KubernetesBackend], api_server: Server, namespace: str
) -> None:
    backend = start(annotations={PLAN: "1", "other": "x"})
    backend.read()
    path = path_of(namespace, "statefulsets", TRAINER)
    api_server.rest.merge(path, {"metadata": {"annotations": {"other": None}}})
    backend.patch_annotations({"other": None}, {PLAN: "1"})
    assert api_server.rest.get(path)["metadata"]["annotations"] == {PLAN: "1"}


def test_two_writers_and_one_winner(start: Callable[..., KubernetesBackend], api: Api, namespace: str) -> None:
    backend = start(annotations={PLAN: "1"})
    other = KubernetesBackend(api, namespace, TRAINER, f"app={TRAINER}")
    backend.read(), other.read()
    backend.patch_annotations({PLAN: "mine"}, {PLAN: "1"})
    with pytest.raises(Conflict):
        other.patch_annotations({PLAN: "theirs"}, {PLAN: "1"})
    wait_for(lambda: other.read().annotations[PLAN] == "mine", "the other to hear of it")
    other.close()


def test_an_impossible_patch_is_no_conflict(start: Callable[..., KubernetesBackend]) -> None:
    """300 KiB of annotations are refused (422 too), also after any number of new reads. The name has `test` in it on purpose."""
    backend = start(annotations={"test": "1"})
    with pytest.raises(ApiError) as refused:
        backend.patch_annotations({"test": "x" * (300 << 10)}, {"test": "1"})
    assert refused.value.status == 422 and not isinstance(refused.value, Changed)


def test_scale_goes_through_its_subresource_under_its_own_name(
    start: Callable[..., KubernetesBackend], api_server: Server, namespace: str
) -> None:
    backend = start()
    backend.scale(2)
    assert backend.read().spec_replicas == 2
    found = api_server.rest.get(path_of(namespace, "statefulsets", TRAINER))
    owners = {
        one["manager"]: one for one in found["metadata"]["managedFields"] if "f:replicas" in str(one["fieldsV1"].get("f:spec"))
    }
    assert owners[FIELD_MANAGER]["subresource"] == "scale"
    with pytest.raises(ValueError, match="-1"):
        backend.scale(-1)


def test_scale_replaces_only_the_number_that_it_knows(start: Callable[..., KubernetesBackend], api: Api, namespace: str) -> None:
    """A number of zero too, and while another process writes annotations of the object."""
    backend = start(annotations={"a": ""})
    person = KubernetesBackend(api, namespace, TRAINER, f"app={TRAINER}")
    person.scale(3)
    with pytest.raises(Conflict, match=r"spec.replicas is 3, expected 0"):
        backend.scale(1, 0)
    assert backend.read().spec_replicas == 3, "the number that refused the write is read at once"
    with ThreadPoolExecutor(1) as writing:
        writes = writing.submit(lambda: [person.patch_annotations({"a": str(number)}, {}) for number in range(30)])
        for known, number in itertools.pairwise([3, 0, 2, 0, 1, 0, 2, 1]):
            backend.scale(number, known)
            assert backend.read().spec_replicas == number
        writes.result(60)
    wait_for(lambda: person.read().spec_replicas == 1, "the last number")
    person.close()


def test_pods_are_read_as_they_are(start: Callable[..., KubernetesBackend], cluster: Cluster, namespace: str) -> None:
    backend = start(2)
    real = ready_pods(cluster, namespace, TRAINER, 2)
    seen = wait_for(lambda: (pods := backend.read().pods) and all(one.ready for one in pods) and pods, "ready pods")
    assert [(one.name, one.uid, one.node, one.phase) for one in seen] == [
        (one["metadata"]["name"], one["metadata"]["uid"], one["spec"]["nodeName"], "Running") for one in real
    ]
    assert [one.ordinal for one in seen] == [0, 1]
    assert all(abs(one.started_at - time.time()) < 120 for one in seen)


def test_a_pod_is_deleted_with_grace_and_never_its_successor(
    start: Callable[..., KubernetesBackend], cluster: Cluster, api: Api, namespace: str
) -> None:
    backend = start(1)
    first = ready_pods(cluster, namespace, TRAINER, 1)[0]["metadata"]
    wait_for(lambda: backend.read().pods, "the pod to be heard of")
    name = f"{TRAINER}-0"
    backend.delete_pod(name, 1.0)
    second = wait_for(lambda: (now := _uid(cluster, namespace, name)) != first["uid"] and now, "its successor")
    with pytest.raises(Changed):
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": first["uid"]}}
        api.delete(path_of(namespace, "pods", name), options)
    assert _uid(cluster, namespace, name) == second
    backend.delete_pod("no-such-pod", 1.0)


def test_events_are_written_where_kubectl_shows_them(
    start: Callable[..., KubernetesBackend], api_server: Server, namespace: str
) -> None:
    start().emit_event("Warning", "WorldTooSmall", "3 of 4 workers are there; " + "x" * 2000)
    events = api_server.rest.get(path_of(namespace, "events"), fieldSelector=f"involvedObject.name={TRAINER}")["items"]
    ours = next(one for one in events if one["reason"] == "WorldTooSmall")
    assert ours["type"] == "Warning" and ours["message"].startswith("3 of 4 workers") and len(ours["message"]) == 1024
    assert ours["involvedObject"]["uid"] and ours["source"]["component"] == FIELD_MANAGER


def test_no_stateful_set_is_said_so(api: Api, namespace: str) -> None:
    backend = KubernetesBackend(api, namespace, TRAINER, f"app={TRAINER}")
    with pytest.raises(NotFound, match=TRAINER):
        backend.read()
    assert not isinstance(backend, Breakable), "planned faults of nodes are for the local cluster"
    backend.close()


def test_what_the_role_does_not_grant_is_refused_on_calls_and_watches(api: Api, namespace: str) -> None:
    refused = {
        "another StatefulSet": lambda: api.get(path_of(namespace, "statefulsets", "other")),
        "all StatefulSets": lambda: api.get(path_of(namespace, "statefulsets")),
        "secrets": lambda: api.get(path_of(namespace, "secrets")),
        "a watch of secrets": lambda: list(api.watch(path_of(namespace, "secrets"))),
        "a new Lease": lambda: api.create(path_of(namespace, "leases"), {"metadata": {"name": "x"}}),
        "pods of another namespace": lambda: api.get(path_of("kube-system", "pods")),
    }
    for what, call in refused.items():
        with pytest.raises(ApiError) as error:
            call()
        assert error.value.status == 403, f"{what}: {error.value}"


def test_a_person_is_known_by_a_kubeconfig(cluster: Cluster, namespace: str) -> None:
    api = Api.from_kubeconfig(str(cluster.plane.kubeconfig("admin", namespace=namespace)))
    assert [one["metadata"]["name"] for one in api.get(path_of(namespace, "serviceaccounts"))["items"]] == ["default"]
    api.close()


def test_answers_become_the_kinds_of_errors_that_callers_handle(api: Api, api_server: Server, namespace: str) -> None:
    with pytest.raises(NotFound):
        api.get(path_of(namespace, "statefulsets", TRAINER))
    path = path_of(namespace, "leases", "run-controller")
    made = api_server.rest.create(path_of(namespace, "leases"), {"metadata": {"name": "run-controller"}})
    api.replace(path, {**made, "spec": {"leaseDurationSeconds": 1}})
    with pytest.raises(Changed):
        api.replace(path, {**made, "spec": {"leaseDurationSeconds": 2}})


def test_a_frozen_api_server_costs_a_deadline_not_for_ever(
    start: Callable[..., KubernetesBackend], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frostline_controller.cluster.kubernetes.api.READ_SECONDS", 1.0)
    backend = start(annotations={PLAN: "1"})
    assert backend.read().annotations == {PLAN: "1"}
    cluster.plane.freeze_api_server(True)
    try:
        _given_up(backend)
        assert backend.read().annotations == {PLAN: "1"}, "reading goes on from memory"
    finally:
        cluster.plane.freeze_api_server(False)
    wait_for(lambda: _patched(backend), "a patch to go through again")


@fastest_of_three
def _given_up(backend: KubernetesBackend) -> None:
    """A patch that the API server does not answer ends with an error, in time."""
    started = time.monotonic()
    with pytest.raises(ApiError):
        backend.patch_annotations({PLAN: "2"}, {PLAN: "1"})
    in_time(time.monotonic() - started, 6.0, "the patch")


def _patched(backend: KubernetesBackend) -> bool:
    """Return whether the patch is in force. The frozen server may have applied an abandoned patch: then this one conflicts."""
    try:
        backend.patch_annotations({PLAN: "2"}, {PLAN: "1"})
    except Conflict:
        return backend.read().annotations[PLAN] == "2"
    except ApiError:
        return False
    return True


def _uid(cluster: Cluster, namespace: str, pod: str) -> str:
    found: list[Json] = [one for one in cluster.pods(namespace) if one["metadata"]["name"] == pod]
    return found[0]["metadata"]["uid"] if found else ""
