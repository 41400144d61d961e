"""Volumes on the test nodes: tokens of the pod, files that are kept fresh, claims that outlive their pods."""

import json
import time
from base64 import b64encode

import jwt

from tests.cluster.api import Json
from tests.cluster.cluster import Cluster
from tests.cluster.control_plane import ISSUER
from tests.cluster.pod_life import TOKEN_SHARE_ANNOTATION
from tests.cluster.waiting import wait_for
from tests.cluster.workloads import ask, environment, path_of, pod, pod_spec, ready_pods, stateful_set

TOKEN_FILE = "/var/run/frostline/token"


def test_a_projected_token_names_audience_pod_and_account(cluster: Cluster, namespace: str) -> None:
    """A token as the trainers have one, checked offline against the API server's keys."""
    cluster.rest.create(path_of(namespace, "serviceaccounts"), {"metadata": {"name": "trainer"}})
    audience = f"frostline/{namespace}/run"
    source = {"serviceAccountToken": {"audience": audience, "expirationSeconds": 600, "path": "token"}}
    spec = pod_spec(
        env=[{"name": "TOKEN_FILE", "value": TOKEN_FILE}],
        volumeMounts=[{"name": "token", "mountPath": "/var/run/frostline", "readOnly": True}],
        spec={"serviceAccountName": "trainer", "volumes": [{"name": "token", "projected": {"sources": [source]}}]},
    )
    cluster.rest.create(path_of(namespace, "pods"), pod("one", spec, app="one"))
    one = ready_pods(cluster, namespace, "one", 1)[0]
    token = ask(one, "/read", path=environment(one)["TOKEN_FILE"])
    key = jwt.PyJWKSet.from_dict(cluster.rest.get("/openid/v1/jwks"))[jwt.get_unverified_header(token)["kid"]]
    claims = jwt.decode(token, key, algorithms=["RS256"], audience=audience, issuer=ISSUER)
    assert claims["kubernetes.io"]["pod"] == {"name": "one", "uid": one["metadata"]["uid"]}
    assert claims["sub"] == f"system:serviceaccount:{namespace}:trainer"
    assert claims["exp"] - time.time() < 610


def test_a_token_is_renewed_while_its_pod_runs(cluster: Cluster, namespace: str) -> None:
    source = {"serviceAccountToken": {"audience": "x", "expirationSeconds": 600, "path": "token"}}
    spec = pod_spec(
        env=[{"name": "TOKEN_FILE", "value": TOKEN_FILE}],
        volumeMounts=[{"name": "token", "mountPath": "/var/run/frostline"}],
        spec={"volumes": [{"name": "token", "projected": {"sources": [source]}}]},
    )
    made = pod("one", spec, app="one")
    made["metadata"]["annotations"] = {TOKEN_SHARE_ANNOTATION: str(2 / 600)}
    cluster.rest.create(path_of(namespace, "pods"), made)
    one = ready_pods(cluster, namespace, "one", 1)[0]
    path = environment(one)["TOKEN_FILE"]
    first = ask(one, "/read", path=path)
    second = wait_for(lambda: (now := ask(one, "/read", path=path)) != first and now, "another token", 20)
    issued = [jwt.decode(token, options={"verify_signature": False})["iat"] for token in (first, second)]
    assert issued[1] > issued[0]


def test_config_maps_secrets_and_the_downward_api_as_files(cluster: Cluster, namespace: str) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"job.yaml": "a: 1", "other": "-"}}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "s"},
        "data": {"key": b64encode(b"hush").decode()},
    }
    cluster.rest.create(path_of(namespace, "configmaps"), config)
    cluster.rest.create(path_of(namespace, "secrets"), secret)
    sources = [
        {"configMap": {"name": "c", "items": [{"key": "job.yaml", "path": "job.yaml"}]}},
        {"secret": {"name": "s"}},
        {"downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
        {"configMap": {"name": "absent", "optional": True}},
    ]
    env = [
        {"name": "FILES", "value": "/etc/files"},
        {"name": "JOB", "value": "--job=/etc/files/job.yaml,/etc/filesystem"},
        {"name": "HUSH", "valueFrom": {"secretKeyRef": {"name": "s", "key": "key"}}},
        {"name": "HOST", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "GREETING", "value": "$(HUSH) $$(HUSH) $(NOBODY)"},
    ]
    mounts = [{"name": "files", "mountPath": "/etc/files"}, {"name": "tmp", "mountPath": "/tmp"}]
    volumes = [{"name": "files", "projected": {"sources": sources}}, {"name": "tmp", "emptyDir": {}}]
    spec = pod_spec(env=env, volumeMounts=mounts, spec={"volumes": volumes})
    cluster.rest.create(path_of(namespace, "pods"), pod("one", spec, app="one"))
    one = ready_pods(cluster, namespace, "one", 1)[0]
    found = environment(one)
    files = found["FILES"]
    read = {name: ask(one, "/read", path=f"{files}/{name}") for name in ("job.yaml", "key", "labels")}
    assert read == {"job.yaml": "a: 1", "key": "hush", "labels": 'app="one"'}
    assert found["JOB"] == f"--job={files}/job.yaml,/etc/filesystem", "a longer name is another path"
    assert found["HUSH"] == "hush" and found["GREETING"] == "hush $(HUSH) $(NOBODY)"
    assert found["HOST"] == found["FROSTLINE_BIND_HOST"] and found["HOST"].startswith("127.")
    assert found["TMPDIR"].endswith("/tmp") and found["TMPDIR"] != "/tmp"
    cluster.rest.merge(path_of(namespace, "configmaps", "c"), {"data": {"job.yaml": "a: 2"}})
    wait_for(lambda: ask(one, "/read", path=f"{files}/job.yaml") == "a: 2", "the file to follow its ConfigMap", 30)


def test_what_is_in_a_claim_outlives_its_pod_and_is_shared(cluster: Cluster, namespace: str) -> None:
    cluster.rest.create(path_of(namespace, "persistentvolumeclaims"), _claim("storage"))
    mounts = [{"name": "storage", "mountPath": "/frostline/storage"}]
    volumes = [{"name": "storage", "persistentVolumeClaim": {"claimName": "storage"}}]
    spec = pod_spec(env=[{"name": "DIR", "value": "/frostline/storage"}], volumeMounts=mounts, spec={"volumes": volumes})
    cluster.rest.create(path_of(namespace, "statefulsets"), stateful_set("web", 2, spec))
    first, second = ready_pods(cluster, namespace, "web", 2)
    ask(first, "/write", path=environment(first)["DIR"] + "/kept", text="step 7")
    assert ask(second, "/read", path=environment(second)["DIR"] + "/kept") == "step 7"
    for name in ("web-0", "web-1"):
        cluster.rest.delete(path_of(namespace, "pods", name))

    def replaced() -> Json | None:
        now = ready_pods(cluster, namespace, "web", 2)[0]
        return now if now["metadata"]["uid"] != first["metadata"]["uid"] else None

    now = wait_for(replaced, "the pods to be replaced")
    assert ask(now, "/read", path=environment(now)["DIR"] + "/kept") == "step 7"


def test_a_claim_that_goes_takes_its_folder_along(cluster: Cluster, namespace: str) -> None:
    cluster.rest.create(path_of(namespace, "persistentvolumeclaims"), _claim("storage"))
    path = path_of(namespace, "persistentvolumeclaims", "storage")
    bound = wait_for(lambda: (now := cluster.rest.get(path))["status"].get("phase") == "Bound" and now, "the claim to be bound")
    folder = cluster.folder / "claims" / bound["spec"]["volumeName"]
    assert folder.is_dir()
    cluster.rest.delete(path)
    wait_for(lambda: not folder.exists(), "its folder to go")
    volumes = json.loads(cluster.kubectl("get", "pv", "-o", "json"))["items"]
    assert bound["spec"]["volumeName"] not in [one["metadata"]["name"] for one in volumes]


def _claim(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
