"""One release as it is: the objects, what their pods have, and that both Helms agree."""

import json
import re

import pytest

from frostline_contract.job import load_job
from frostline_contract.job.load import parse_job, read_yaml
from tests.chart.rendering import CHART, DIGITS, EVERYTHING, HELMS, Json, environment, helm, render

OURS = [
    ("Deployment", "digits-controller"),
    ("Deployment", "digits-cache-server"),
    ("StatefulSet", "digits-redis"),
    ("StatefulSet", "digits-trainer"),
]


@pytest.mark.parametrize("name", HELMS)
def test_a_job_file_renders_as_it_is(name: str) -> None:
    found = render(name=name)
    assert found.names() == sorted([
        *(f"ServiceAccount digits-{role}" for role in ("controller", "trainer", "cache-server", "redis", "check")),
        *(f"NetworkPolicy digits-{role}" for role in ("controller", "trainer", "cache-server", "redis", "check")),
        *(f"Service digits-{role}" for role in ("controller", "trainer", "cache-server", "redis", "redis-0", "metrics")),
        *(f"PodDisruptionBudget digits-{role}" for role in ("controller", "trainer")),
        "ConfigMap digits-job", "Deployment digits-cache-server", "Deployment digits-controller", "Lease digits-controller",
        "PersistentVolumeClaim digits-storage", "Pod digits-check", "Role digits-controller", "RoleBinding digits-controller",
        "StatefulSet digits-redis", "StatefulSet digits-trainer",
    ])  # fmt: skip


@pytest.mark.wide
@pytest.mark.parametrize("settings", [(), EVERYTHING], ids=["defaults", "everything"])
def test_both_helms_render_the_same(settings: tuple[str, ...]) -> None:
    three, four = (render(*settings, name=name) for name in ("helm3", "helm4"))
    assert three.names() == four.names()
    for one in three.objects:
        assert one == four.get(one["kind"], one["metadata"]["name"])


@pytest.mark.parametrize("name", HELMS)
@pytest.mark.parametrize("settings", [(), EVERYTHING], ids=["defaults", "everything"])
def test_lint_finds_nothing(name: str, settings: tuple[str, ...]) -> None:
    sets = [word for text in settings for word in ("--set-json", text)]
    said = helm(name, "lint", "--strict", str(CHART), "--kube-version", "1.36.3", "-f", str(DIGITS), *sets)
    assert "0 chart(s) failed" in said
    assert not re.search(r"\[(WARNING|ERROR)\]", said), said


def test_the_controller_finds_the_job_that_was_given() -> None:
    text = render().get("ConfigMap", "digits-job")["data"]["job.yaml"]
    job = load_job(DIGITS)
    assert parse_job(json.loads(text)) == parse_job(read_yaml(text)) == job


@pytest.mark.parametrize(("kind", "name"), OURS)
@pytest.mark.parametrize("settings", [(), EVERYTHING], ids=["defaults", "everything"])
def test_every_pod_is_as_restricted_as_the_pod_security_standard_asks(kind: str, name: str, settings: tuple[str, ...]) -> None:
    spec = render(*settings).pod(kind, name)
    _restricted(spec)
    assert spec["serviceAccountName"] == name
    labels = render(*settings).get(kind, name)["spec"]["template"]["metadata"]["labels"]
    assert render(*settings).get(kind, name)["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_check_is_restricted_too_and_a_hook() -> None:
    pod = render().get("Pod", "digits-check")
    _restricted(pod["spec"])
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["restartPolicy"] == "Never"
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python", "-m", "frostline_controller.check_release"]
    assert container["image"] == "ghcr.io/frostline/controller:0.1.0"
    assert environment(container)["FROSTLINE_CONTROLLER"] == "$(DIGITS_CONTROLLER_SERVICE_HOST):7000"


def _restricted(spec: Json) -> None:
    assert spec["automountServiceAccountToken"] is False
    own = spec["securityContext"]
    assert own["runAsNonRoot"] is True and own["runAsUser"] > 0
    assert own["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert re.search(r"(:[^:/]+|@sha256:[0-9a-f]{64})$", container["image"]) and not container["image"].endswith(":latest")
        declared = {volume["name"] for volume in spec.get("volumes", ())}
        assert {mount["name"] for mount in container.get("volumeMounts", ())} == declared
        assert len({mount["mountPath"] for mount in container.get("volumeMounts", ())}) == len(declared)
        assert len(environment(container)) == len(container.get("env", ()))
    for volume in spec.get("volumes", ()):
        assert not {"hostPath", "configMap"} & set(volume)


def test_the_trainers_are_what_facts_say() -> None:
    found = render().get("StatefulSet", "digits-trainer")["spec"]
    assert "replicas" not in found
    assert found["podManagementPolicy"] == "Parallel" and found["updateStrategy"] == {"type": "OnDelete"}
    assert found["serviceName"] == "digits-trainer"
    spec = found["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] == 30
    assert {(one["key"], one["tolerationSeconds"]) for one in spec["tolerations"]} == {
        ("node.kubernetes.io/not-ready", 10),
        ("node.kubernetes.io/unreachable", 10),
    }
    (container,) = spec["containers"]
    assert container["command"] == ["python", "-m", "frostline_trainer.process.agent"]
    paths = {probe: container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert paths == {"startupProbe": "/started", "readinessProbe": "/ready", "livenessProbe": "/live"}
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] == 900
    variables = environment(container)
    assert {name: variables[name] for name in (
        "FROSTLINE_RUN_DIR", "FROSTLINE_CONTROLLER", "FROSTLINE_CACHE", "FROSTLINE_TOKEN", "FROSTLINE_WORKERS_PER_POD",
        "FROSTLINE_DEVICE", "FROSTLINE_GRACE_SECONDS", "FROSTLINE_HEALTH_PORT",
    )} == {
        "FROSTLINE_RUN_DIR": "/frostline/storage/runs/digits",
        "FROSTLINE_CONTROLLER": "$(DIGITS_CONTROLLER_SERVICE_HOST):7000",
        "FROSTLINE_CACHE": "$(DIGITS_CACHE_SERVER_SERVICE_HOST):7100",
        "FROSTLINE_TOKEN": "/var/run/frostline/token",
        "FROSTLINE_WORKERS_PER_POD": "1",
        "FROSTLINE_DEVICE": "auto",
        "FROSTLINE_GRACE_SECONDS": "29",
        "FROSTLINE_HEALTH_PORT": "7001",
    }  # fmt: skip
    fields = {name: variables[name]["fieldRef"]["fieldPath"] for name in (
        "FROSTLINE_POD_NAME", "FROSTLINE_POD_UID", "FROSTLINE_NODE", "FROSTLINE_HOST",
    )}  # fmt: skip
    assert list(fields.values()) == ["metadata.name", "metadata.uid", "spec.nodeName", "status.podIP"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    (source,) = volumes["identity"]["projected"]["sources"]
    assert source["serviceAccountToken"] == {"path": "token", "audience": "frostline/research/digits", "expirationSeconds": 3600}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert "api" not in volumes, "a trainer has no token for the API server"
    service = render().get("Service", "digits-trainer")["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True


def test_the_controllers_are_two_behind_a_lease() -> None:
    found = render().get("Deployment", "digits-controller")["spec"]
    assert found["replicas"] == 2
    assert "spec" not in render().get("Lease", "digits-controller")
    (container,) = found["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "frostline_controller.on_cluster"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]} == {"grpc": 7000, "health": 7001, "metrics": 7002}
    assert all(container[probe]["grpc"] == {"port": 7001} for probe in ("startupProbe", "readinessProbe", "livenessProbe"))
    variables = environment(container)
    assert variables["FROSTLINE_RELEASE"] == "digits" and variables["FROSTLINE_AUDIENCE"] == "frostline/research/digits"
    assert variables["FROSTLINE_NAMESPACE"] == {"fieldRef": {"fieldPath": "metadata.namespace"}}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["api"] == variables["FROSTLINE_SERVICE_ACCOUNT"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    assert mounts["storage"] == "/frostline/storage"
    (api,) = (one["projected"]["sources"] for one in found["template"]["spec"]["volumes"] if one["name"] == "api")
    assert [list(source) for source in api] == [["serviceAccountToken"], ["configMap"], ["downwardAPI"]]
    assert "audience" not in api[0]["serviceAccountToken"]
    service = render().get("Service", "digits-controller")["spec"]
    assert service["selector"]["frostline.io/role"] == "leader"
    assert {port["name"]: port["port"] for port in service["ports"]} == {"grpc": 7000, "health": 7001, "web": 7002}


def test_the_cache_server_and_its_shards() -> None:
    found = render("cache.shards=3", "cache.memory_bytes=3221225472")
    container = found.container("Deployment", "digits-cache-server")
    addresses = ",".join(f"$(DIGITS_REDIS_{shard}_SERVICE_HOST):6379" for shard in range(3))
    words = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
    assert words == {
        "--shards": addresses, "--port": "7100", "--health-port": "7101", "--metrics-port": "7102",
        "--memory-bytes": "3221225472", "--log-level": "info",
    }  # fmt: skip
    assert found.get("StatefulSet", "digits-redis")["spec"]["replicas"] == 3
    for shard in range(3):
        selector = found.get("Service", f"digits-redis-{shard}")["spec"]["selector"]
        assert selector["statefulset.kubernetes.io/pod-name"] == f"digits-redis-{shard}"
    redis = found.container("StatefulSet", "digits-redis")
    words = dict(zip(redis["args"][::2], redis["args"][1::2], strict=True))
    assert redis["command"] == ["redis-server"]
    assert words["--maxmemory"] == str(2**30) and words["--maxmemory-policy"] == "noeviction"
    assert (words["--save"], words["--appendonly"], words["--bind"]) == ("", "no", "$(FROSTLINE_HOST)")
    assert int(redis["resources"]["limits"]["memory"]) > int(redis["resources"]["requests"]["memory"]) > 2**30


def test_drains_always_find_something_to_take() -> None:
    for budget in render().of("PodDisruptionBudget"):
        assert budget["spec"]["maxUnavailable"] == 1 and "minAvailable" not in budget["spec"]


def test_names_that_variables_are_made_of() -> None:
    variables = environment(render(release="my-run-2").container("StatefulSet", "my-run-2-trainer"))
    assert variables["FROSTLINE_CONTROLLER"] == "$(MY_RUN_2_CONTROLLER_SERVICE_HOST):7000"
    longest = "r" * 40
    for one in render(release=longest, namespace="n").objects:
        assert len(one["metadata"]["name"]) <= (52 if one["kind"] == "StatefulSet" else 63) or one["kind"] == "ClusterRoleBinding"


def test_workers_of_one_speed() -> None:
    """What a pod asks for is what it gets, so that its node's other pods change nothing."""
    found = render("placement.worker_cpus=1.5", "placement.workers_per_pod=2", "placement.workers=4")
    trainer = ("StatefulSet", "digits-trainer")
    resources = found.container(*trainer)["resources"]
    assert resources["requests"]["cpu"] == resources["limits"]["cpu"] == "3000m"
    assert resources["requests"]["memory"] == render().container(*trainer)["resources"]["requests"]["memory"]
