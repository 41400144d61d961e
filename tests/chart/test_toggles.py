"""Each value that changes what is rendered, and that it changes nothing else that matters."""

import json
import os
import re
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from frostline_controller.cluster.local.redis_process import find_redis_server
from tests.chart.rendering import EVERYTHING, Release, environment, render
from tests.integration.scripted_worker import wait_for

TRAINER = ("StatefulSet", "digits-trainer")
CONTROLLER = ("Deployment", "digits-controller")


def changed(*settings: str) -> tuple[set[str], set[str]]:
    """Objects that the settings add, and that they take away."""
    before, after = set(render().names()), set(render(*settings).names())
    return after - before, before - after


@pytest.mark.parametrize(
    ("settings", "added", "removed"),
    [
        (['kubernetes.monitoring={"service_monitor":true}'], {"ServiceMonitor digits-metrics"}, set()),
        (['kubernetes.monitoring={"rules":true}'], {"PrometheusRule digits-metrics"}, set()),
        (['kubernetes.monitoring={"dashboard":true}'], {"ConfigMap digits-dashboard"}, set()),
        (["kubernetes.auth.token_review=true"], {"ClusterRoleBinding frostline:research:digits:token-review"}, set()),
        (
            ["kubernetes.disruption_budget=false"],
            set(),
            {"PodDisruptionBudget digits-controller", "PodDisruptionBudget digits-trainer"},
        ),
        (
            ["kubernetes.network_policy.enabled=false"],
            set(),
            {f"NetworkPolicy digits-{role}" for role in ("controller", "trainer", "cache-server", "redis", "check")},
        ),
        (['kubernetes.storage.claim="mine"'], set(), {"PersistentVolumeClaim digits-storage"}),
        (
            ['cache.addresses=["redis.example.com:6380"]', "cache.trusted=true"],
            set(),
            {"StatefulSet digits-redis", "ServiceAccount digits-redis", "NetworkPolicy digits-redis", "Service digits-redis",
             "Service digits-redis-0"},
        ),
        (["cache.shards=2"], {"Service digits-redis-1"}, set()),
    ],
    ids=lambda value: value[0].partition("=")[0] if isinstance(value, list) else None,
)  # fmt: skip
def test_objects_that_come_and_go(settings: list[str], added: set[str], removed: set[str]) -> None:
    assert changed(*settings) == (added, removed)


def test_no_cluster_role_unless_asked() -> None:
    assert not [one for one in render().objects if one["kind"].startswith("ClusterRole")]
    binding = render("kubernetes.auth.token_review=true").of("ClusterRoleBinding")[0]
    assert binding["roleRef"]["name"] == "system:auth-delegator"
    assert {subject["name"] for subject in binding["subjects"]} == {"digits-controller", "digits-cache-server"}
    assert {subject["namespace"] for subject in binding["subjects"]} == {"research"}


def test_spot_nodes() -> None:
    keys = {one["key"] for one in render("kubernetes.trainer.spot=true").pod(*TRAINER)["tolerations"]}
    assert {"cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority"} <= keys
    assert not [one for one in render().pod(*TRAINER)["tolerations"] if "spot" in json.dumps(one)]


@pytest.mark.parametrize(
    ("role", "kind"),
    [("controller", "Deployment"), ("trainer", "StatefulSet"), ("cache_server", "Deployment"), ("redis", "StatefulSet")],
)
def test_where_pods_run_and_what_they_get(role: str, kind: str) -> None:
    given = {
        "image": {"repository": "example.com/image", "tag": "7", "pull_policy": "Always"},
        "requests": {"cpu": 0.5, "memory": 4294967296},
        "limits": {"cpu": "1500m"},
        "node_selector": {"pool": "a", "numbered": "1"},
        "tolerations": [{"key": "team", "operator": "Equal", "value": "true", "effect": "NoExecute", "tolerationSeconds": 0}],
        "priority_class": "high",
        "env": {"COLOUR": "blue", "HOME": "/data"},
        "labels": {"team": "vision"},
        "annotations": {"example.com/a": "1"},
    }
    name = f"digits-{role.replace('_', '-')}"
    found = render(f"kubernetes.{role}={json.dumps(given)}")
    spec, container = found.pod(kind, name), found.container(kind, name)
    assert (container["image"], container["imagePullPolicy"]) == ("example.com/image:7", "Always")
    assert container["resources"]["requests"] == {"cpu": "0.5", "memory": "4294967296"}
    assert container["resources"]["limits"]["cpu"] == "1500m"
    assert spec["nodeSelector"] == given["node_selector"]
    assert given["tolerations"][0] in spec["tolerations"]
    assert spec["priorityClassName"] == "high"
    assert given["env"].items() <= environment(container).items()
    metadata = found.get(kind, name)["spec"]["template"]["metadata"]
    assert given["labels"].items() <= metadata["labels"].items()
    assert given["annotations"].items() <= metadata["annotations"].items()


def test_an_image_by_digest() -> None:
    digest = "sha256:" + "ab" * 32
    found = render(f'kubernetes.trainer.image={{"repository":"example.com/t","tag":"{digest}"}}')
    assert found.container(*TRAINER)["image"] == f"example.com/t@{digest}"


@pytest.mark.parametrize(
    ("setting", "place", "value"),
    [
        ("kubernetes.trainer.grace_seconds=15", "terminationGracePeriodSeconds", 15),
        ('kubernetes.trainer.runtime_class="nvidia"', "runtimeClassName", "nvidia"),
        ('kubernetes.image_pull_secrets=["a","b"]', "imagePullSecrets", [{"name": "a"}, {"name": "b"}]),
        ('kubernetes.storage={"access_mode":"ReadWriteOnce","node":"kind-worker"}', "nodeSelector",
         {"kubernetes.io/hostname": "kind-worker"}),
    ],
)  # fmt: skip
def test_single_values_of_the_trainers(setting: str, place: str, value: Any) -> None:
    assert render(setting).pod(*TRAINER)[place] == value


def test_grace_and_start_are_told_and_probed() -> None:
    found = render("kubernetes.trainer.grace_seconds=100", "kubernetes.trainer.start_seconds=61").container(*TRAINER)
    assert environment(found)["FROSTLINE_GRACE_SECONDS"] == "99"
    assert found["startupProbe"]["failureThreshold"] * found["startupProbe"]["periodSeconds"] == 62


def test_spread_by_another_label_or_not_at_all() -> None:
    zone = render('kubernetes.trainer.spread_by="topology.kubernetes.io/zone"').pod(*TRAINER)
    assert [one["topologyKey"] for one in zone["topologySpreadConstraints"]] == ["topology.kubernetes.io/zone"]
    assert "topologySpreadConstraints" not in render('kubernetes.trainer.spread_by=""').pod(*TRAINER)


def test_unreachable_nodes() -> None:
    tolerations = render("kubernetes.trainer.unreachable_seconds=0").pod(*TRAINER)["tolerations"]
    assert [one["tolerationSeconds"] for one in tolerations] == [0, 0]


def test_the_claim_stays_unless_told() -> None:
    keep = {"helm.sh/resource-policy": "keep"}
    assert render().get("PersistentVolumeClaim", "digits-storage")["metadata"]["annotations"] == keep
    assert "annotations" not in render("kubernetes.storage.keep=false").get("PersistentVolumeClaim", "digits-storage")["metadata"]
    made = render('kubernetes.storage={"class_name":"nfs","size":"1Ti"}').get("PersistentVolumeClaim", "digits-storage")["spec"]
    assert made == {"accessModes": ["ReadWriteMany"], "storageClassName": "nfs", "resources": {"requests": {"storage": "1Ti"}}}


@pytest.mark.parametrize("place", [TRAINER, CONTROLLER])
def test_a_claim_of_ones_own_and_one_node(place: tuple[str, str]) -> None:
    spec = render('kubernetes.storage={"claim":"mine","node":"n1"}').pod(*place)
    (claim,) = (one["persistentVolumeClaim"] for one in spec["volumes"] if one["name"] == "storage")
    assert claim == {"claimName": "mine"}
    assert spec["nodeSelector"] == {"kubernetes.io/hostname": "n1"}


def test_volumes_of_data_and_models_are_read_only() -> None:
    found = render(*EVERYTHING)
    mounts = {one["name"]: one for one in found.container(*TRAINER)["volumeMounts"]}
    assert mounts["user-images"] == {"name": "user-images", "mountPath": "/data/images", "readOnly": True}
    volumes = {one["name"]: one for one in found.pod(*TRAINER)["volumes"]}
    assert volumes["user-models"]["nfs"] == {"server": "10.0.0.1", "path": "/models"}
    assert "user-images" not in json.dumps(found.pod(*CONTROLLER))


def test_secrets_go_where_they_are_needed_and_nowhere_else() -> None:
    names = {"hub_token_secret": "hub", "redis.password_secret": "pw", "auth.tls_secret": "tls"}
    found = render(*(f'kubernetes.{field}="{name}"' for field, name in names.items()))
    pods = (CONTROLLER, TRAINER, ("Deployment", "digits-cache-server"), ("StatefulSet", "digits-redis"))
    holders = {name: _secrets(found, kind, name) for kind, name in pods}
    assert holders == {
        "digits-controller": {"tls"},
        "digits-trainer": {"hub", "pw", "tls"},
        "digits-cache-server": {"pw", "tls"},
        "digits-redis": {"pw"},
    }
    assert environment(found.container(*TRAINER))["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert environment(found.container(*TRAINER))["FROSTLINE_TLS_DIR"] == "/etc/frostline/tls"
    redis = found.container("StatefulSet", "digits-redis")
    assert redis["args"][redis["args"].index("--protected-mode") + 1] == "yes"
    assert "requirepass" not in " ".join(redis["args"])


@pytest.mark.parametrize("password", ["simple", "with \"quotes\" and \\ and 'others'", "$(HOME) `id` $PATH é\t#"])
def test_redis_learns_its_password_in_no_argument(password: str) -> None:
    """The container's own command, with a real shell and a real Redis."""
    container = render('kubernetes.redis.password_secret="pw"').container("StatefulSet", "digits-redis")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    args = [{"6379": str(port), "$(FROSTLINE_HOST)": "127.0.0.1"}.get(word, word) for word in container["args"]]
    path = os.pathsep.join((str(find_redis_server().parent), os.environ["PATH"]))
    server = subprocess.Popen([*container["command"], *args], env={"PATH": path, "FROSTLINE_REDIS_PASSWORD": password},
                              stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # fmt: skip
    try:
        client = redis.Redis(port=port, password=password)
        wait_for(lambda: _answers(client), "Redis takes its password")
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port).ping()
        shown = Path(f"/proc/{server.pid}/cmdline").read_bytes() + Path(f"/proc/{server.pid}/environ").read_bytes()
        assert password.encode() not in shown
    finally:
        server.terminate()
        assert server.wait(10) == 0, "the shell does not stand between the kubelet and Redis"


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except redis.ConnectionError:
        return False


def test_variables_come_from_secrets_and_none_of_them_lies_in_the_job() -> None:
    key = '{"WANDB_API_KEY":{"secret":"wandb","key":"api-key"}}'
    found = render(f"kubernetes.trainer.secret_env={key}", 'kubernetes.trainer.env_from_secrets=["more"]',
                   'kubernetes.trainer.env={"COLOUR":"by accident a secret"}')  # fmt: skip
    container = found.container(*TRAINER)
    assert environment(container)["WANDB_API_KEY"] == {"secretKeyRef": {"name": "wandb", "key": "api-key"}}
    assert container["envFrom"] == [{"secretRef": {"name": "more"}}]
    assert environment(container)["COLOUR"] == "by accident a secret"
    assert "by accident" not in found.get("ConfigMap", "digits-job")["data"]["job.yaml"]
    assert "envFrom" not in found.container(*CONTROLLER)


def test_a_shared_cache_is_signed_with_a_secret() -> None:
    found = render('cache.addresses=["redis:6379"]', 'kubernetes.cache_secret="shared"')
    wanted = {"secretKeyRef": {"name": "shared", "key": "secret"}}
    assert environment(found.container(*TRAINER))["FROSTLINE_CACHE_SECRET"] == wanted
    assert "FROSTLINE_CACHE_SECRET" not in environment(found.container(*CONTROLLER))
    assert "FROSTLINE_CACHE_SECRET" not in environment(render().container(*TRAINER))


def test_an_image_may_be_pinned_by_tag_and_digest() -> None:
    digest = "sha256:" + "ab" * 32

    def redis(*settings: str) -> str:
        return render(*settings).container("StatefulSet", "digits-redis")["image"]

    assert re.fullmatch(r"docker\.io/library/redis:7\.[\d.]+-alpine@sha256:[0-9a-f]{64}", redis()), "pinned unless told otherwise"
    tag = redis().split("@")[0]
    assert redis(f'kubernetes.redis.image.digest="{digest}"') == f"{tag}@{digest}", "instead of the digest that the tag has"
    assert redis('kubernetes.redis.image.tag="8-alpine"') == "docker.io/library/redis:8-alpine", "another tag keeps no digest"
    assert redis(f'kubernetes.redis.image.tag="{digest}"') == f"docker.io/library/redis@{digest}"
    ours = render(f'kubernetes.trainer.image.digest="{digest}"').container(*TRAINER)["image"]
    assert re.fullmatch(rf"ghcr\.io/frostline/trainer:[\d.]+@{digest}", ours)


def _secrets(found: Release, kind: str, name: str) -> set[str]:
    spec = found.pod(kind, name)
    mounted = {one["secret"]["secretName"] for one in spec.get("volumes", ()) if "secret" in one}
    values = environment(found.container(kind, name)).values()
    return mounted | {value["secretKeyRef"]["name"] for value in values if isinstance(value, dict) and "secretKeyRef" in value}


def test_external_redis() -> None:
    found = render('cache.addresses=["a.example.com:6380","[fd00::1]:6379"]', "cache.trusted=true")
    args = found.container("Deployment", "digits-cache-server")["args"]
    assert args[args.index("--shards") + 1] == "a.example.com:6380,[fd00::1]:6379"
    rules = json.dumps(found.get("NetworkPolicy", "digits-trainer")["spec"]["egress"])
    assert '"port": 6380' in rules and '"port": 6379' in rules


def test_the_network_is_closed_but_for_what_is_named() -> None:
    found = render()
    for policy in found.of("NetworkPolicy"):
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "digits"
        open_to_all = [port["port"] for rule in policy["spec"]["ingress"] if "from" not in rule for port in rule["ports"]]
        assert open_to_all == ([7002] if policy["metadata"]["name"] == "digits-controller" else []), "pages that only tell"
    redis = found.get("NetworkPolicy", "digits-redis")["spec"]
    assert redis["egress"] == []
    assert _peers(redis["ingress"][0]["from"]) == {"trainer", "cache-server", "check"}
    trainer = found.get("NetworkPolicy", "digits-trainer")["spec"]
    assert [_peers(rule["from"]) for rule in trainer["ingress"]] == [{"trainer"}]
    assert {port["port"] for rule in trainer["egress"] if "to" not in rule for port in rule["ports"]} == {53}


def _peers(peers: list[Any]) -> set[str]:
    return {peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in peers}


@pytest.mark.parametrize(
    "setting", ['model.hub="google/vit"', 'kubernetes.hub_token_secret="s"', 'data.source="squad"', 'data.tokenizer="gpt2"']
)
def test_the_hub_can_be_reached_where_the_job_names_it(setting: str) -> None:
    egress = render(setting).get("NetworkPolicy", "digits-trainer")["spec"]["egress"]
    assert {"ports": [{"port": 443, "protocol": "TCP"}]} in egress
    assert {"ports": [{"port": 443, "protocol": "TCP"}]} not in render().get("NetworkPolicy", "digits-trainer")["spec"]["egress"]


def test_further_egress_and_who_scrapes() -> None:
    further = {"to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}]}
    given = {"metrics_from": {"name": "prom"}, "trainer_egress": [further]}
    found = render(f"kubernetes.network_policy={json.dumps(given)}")
    assert further in found.get("NetworkPolicy", "digits-trainer")["spec"]["egress"]
    ingress = found.get("NetworkPolicy", "digits-controller")["spec"]["ingress"]
    (metrics,) = (rule for rule in ingress if rule["ports"][0]["port"] == 7002)
    assert metrics["from"] == [{"namespaceSelector": {"matchLabels": {"name": "prom"}}}]


def test_the_api_server_can_be_asked_at_the_ports_that_it_has() -> None:
    usual, others = render(), render("kubernetes.network_policy.api_ports=[443,16443]")
    for role in ("controller", "cache-server", "check"):
        for found, ports in ((usual, (443, 6443)), (others, (443, 16443))):
            egress = found.get("NetworkPolicy", f"digits-{role}")["spec"]["egress"]
            assert {"ports": [{"port": port, "protocol": "TCP"} for port in ports]} in egress


def test_the_report_can_be_fetched_by_way_of_the_api_server() -> None:
    """Which is no pod, so that no selector can let it in."""
    ingress = render().get("NetworkPolicy", "digits-controller")["spec"]["ingress"]
    (pages,) = (rule for rule in ingress if rule["ports"][0]["port"] == 7002)
    assert "from" not in pages


def test_controllers_by_number() -> None:
    assert render("kubernetes.controller_replicas=3").get(*CONTROLLER)["spec"]["replicas"] == 3
