"""The rights of the run's accounts: exactly those that they use, by the audit log of a whole run."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from frostline_proto.v1 import control_pb2, control_pb2_grpc
from frostline_rpc.channel import open_channel
from frostline_rpc.tls import SERVER_NAME
from tests.cluster.api import Refused
from tests.cluster.releases import SMALL, Release, long
from tests.cluster.waiting import wait_for

ACCOUNT = "system:serviceaccount:{namespace}:digits-{role}"


def requests_of(release: Release, role: str) -> Iterator[dict[str, Any]]:
    """Return the audit lines of one account's requests until now.

    The API server writes them once a second, in their order: a request of our own is waited for.
    """
    plane, mark = release.cluster.plane, f"mark={uuid.uuid4()}"
    plane.get(f"/version?{mark}")
    wait_for(lambda: any(mark in entry["requestURI"] for entry in plane.audited()), "our own request in the audit log", 30)
    user = ACCOUNT.format(namespace=release.namespace, role=role)
    yield from (entry for entry in plane.audited() if entry["user"].get("username") == user)


def granted(release: Release) -> set[tuple[str, str]]:
    """Return the (resource with its subresource, verb) pairs of the controller's Role."""
    role = release.cluster.rest.get(f"/apis/rbac.authorization.k8s.io/v1/namespaces/{release.namespace}/roles/digits-controller")
    return {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}


def test_every_verb_that_is_granted_is_used_and_none_is_refused(release: Release) -> None:
    """A run with a killed leader, a suspend and a hanging worker uses all of them."""
    release.install(faults=[*SMALL["faults"], {"kind": "stop", "worker": 1, "step": 8}], controller={"hang_floor_seconds": 2.0})
    release.wait_for_step(15)
    first = release.leader()
    release.cluster.kubectl("delete", "pod", first, "--grace-period=0", "--force", namespace=release.namespace)
    wait_for(lambda: release.leader() not in ("", first), "another leader")
    release.wait_for_state("completed", 240)
    used, refused = set(), []
    for entry in requests_of(release, "controller"):
        reference = entry.get("objectRef") or {}
        resource = "/".join(filter(None, (reference.get("resource"), reference.get("subresource"))))
        if entry["responseStatus"].get("code") == 403:
            refused.append((resource, entry["verb"]))
        elif resource:
            used.add((resource, entry["verb"]))
    assert not refused
    assert granted(release) - used == set(), "granted and never used"
    assert used <= granted(release)


def test_trainers_ask_the_api_server_for_nothing_and_may_do_nothing(release: Release) -> None:
    release.install()
    release.wait_for_step(5)
    assert not list(requests_of(release, "trainer"))
    token = release.token("trainer", audience="")
    with pytest.raises(Refused) as refused:
        release.rest_as(token).merge(
            f"/apis/apps/v1/namespaces/{release.namespace}/statefulsets/digits-trainer", {"metadata": {"annotations": {"a": "b"}}}
        )
    assert refused.value.status == 403


def call_status(release: Release, token: str) -> grpc.StatusCode:
    """Return the status code with which the leader answers a Command that carries this token."""
    with open_channel(release.controller_address(), token) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        try:
            stub.Command(control_pb2.CommandRequest(kind="cancel"), timeout=30)
        except grpc.RpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def test_calls_without_a_token_of_this_run_are_refused(release: Release) -> None:
    release.install(**long(400))
    release.wait_for_step(5)
    assert call_status(release, "") is grpc.StatusCode.UNAUTHENTICATED
    assert call_status(release, release.token("trainer", audience="another")) is grpc.StatusCode.UNAUTHENTICATED
    # An account of this run, but bound to no pod of it.
    assert call_status(release, release.token("trainer")) is grpc.StatusCode.UNAUTHENTICATED
    # A genuine trainer, which may not send commands.
    assert call_status(release, release.pod_token("digits-trainer-0")) is grpc.StatusCode.PERMISSION_DENIED
    assert release.state() == "running"


def test_a_run_over_tls_whose_tokens_the_api_server_reviews(release: Release, tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("tls.crt", "tls.key", "ca.crt")]
    release.cluster.plane.authority.sign_server(files[0], files[1], [SERVER_NAME], [])
    release.cluster.plane.authority.write(files[2])
    given = [f"--from-file={file}" for file in files]
    release.cluster.kubectl("create", "secret", "generic", "run-tls", *given, namespace=release.namespace)
    release.install(kubernetes={"auth": {"tls_secret": "run-tls", "token_review": True}})
    release.wait_for_step(5)
    with pytest.raises(grpc.RpcError) as refused, open_channel(release.controller_address(), "") as channel:
        control_pb2_grpc.ControlStub(channel).Status(control_pb2.StatusRequest(), timeout=5)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE, "in plain text nobody is there"
    release.wait_for_state("completed", 240)
    reviewed = [
        one for one in requests_of(release, "controller") if (one.get("objectRef") or {}).get("resource") == "tokenreviews"
    ]
    assert reviewed and all(one["responseStatus"]["code"] == 201 for one in reviewed)
    release.uninstall()


def test_an_uninstalled_release_leaves_its_claim_over_which_another_job_does_not_start(release: Release) -> None:
    release.install()
    release.wait_for_step(5)
    release.uninstall()
    kinds = "all,configmaps,secrets,serviceaccounts,roles,rolebindings,leases,networkpolicies,poddisruptionbudgets,pvc"

    def left() -> list[str]:
        found = yaml.safe_load(release.cluster.kubectl("get", kinds, "-o", "yaml", namespace=release.namespace))["items"]
        names = [f"{one['kind']} {one['metadata']['name']}" for one in found]
        return [name for name in names if "kube-root-ca" not in name and name != "ServiceAccount default"]

    wait_for(lambda: len(left()) <= 1, "the rest to go")
    assert left() == ["PersistentVolumeClaim digits-storage"]
    trained = len(release.lines("metrics.jsonl"))
    release.install(training={"batch_size": 32, "micro_batch_size": 4})
    found = wait_for(lambda: release.said("an earlier release's run of another job"), "why it does not start")
    assert "training.batch_size 64, not 32" in found[0] and "install under another name" in found[0], found
    assert len(release.lines("metrics.jsonl")) == trained and not (release.run_dir / "result.json").exists()
