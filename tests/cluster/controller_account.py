"""A service account with the rights of the chart's controller, and nothing else; the controller's own API client for it."""

from pathlib import Path

import pytest

from frostline_controller.cluster.kubernetes.api import Api
from frostline_rpc.api_server import ACCOUNT_FOLDER_VARIABLE
from tests.chart.rendering import render
from tests.cluster.api import Json
from tests.cluster.namespaces import WithNamespaces
from tests.cluster.waiting import wait_for
from tests.cluster.workloads import path_of

RUN = "run"
TRAINER, CONTROLLER = f"{RUN}-trainer", f"{RUN}-controller"
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces"


def grant(server: WithNamespaces, namespace: str) -> None:
    """Make the account, its Role and the binding, and wait until the API server applies them."""
    metadata = {"name": CONTROLLER}
    subject = {"kind": "ServiceAccount", "name": CONTROLLER, "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": CONTROLLER}
    server.rest.create(path_of(namespace, "serviceaccounts"), {"metadata": metadata})
    (role,) = render(release=RUN).of("Role")
    server.rest.create(f"{RBAC}/{namespace}/roles", {"metadata": metadata, "rules": role["rules"]})
    server.rest.create(f"{RBAC}/{namespace}/rolebindings", {"metadata": metadata, "roleRef": reference, "subjects": [subject]})
    asked = {
        "user": f"system:serviceaccount:{namespace}:{CONTROLLER}",
        "resourceAttributes": {"namespace": namespace, "verb": "list", "resource": "pods"},
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": asked}
    reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    wait_for(lambda: server.rest.create(reviews, review)["status"]["allowed"], f"the rights of {CONTROLLER}")


def in_cluster_api(server: WithNamespaces, namespace: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    """Return the client as the controller's pod makes it: token, certificate and namespace in a folder, the address in
    variables."""
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(server.account_token(namespace, CONTROLLER))
    (folder / "ca.crt").write_text(server.rest.get(path_of(namespace, "configmaps", "kube-root-ca.crt"))["data"]["ca.crt"])
    (folder / "namespace").write_text(namespace)
    host, _, port = server.rest.url.removeprefix("https://").rpartition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setenv(ACCOUNT_FOLDER_VARIABLE, str(folder))
    return Api.in_cluster()


def lease(name: str = CONTROLLER) -> Json:
    """Return a Lease as the chart renders it: empty, so that no account needs the right to create one."""
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
