"""The chart as real Helm programs render it, and where those are not, a skip that says so."""

import functools
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.binaries import folder
from tests.wide_rows import wide_rows

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "frostline"
EXAMPLES = ROOT / "examples"
DIGITS = EXAMPLES / "image_classification" / "digits.yaml"
HELMS = wide_rows(("helm4", "helm3"), wide=("helm3",))
KUBERNETES = "1.36.3"
REQUIRED = "FROSTLINE_REQUIRE_CLUSTER"
"""Set to 1 where a missing program is a failure: in CI."""

Json = dict[str, Any]


class Refused(RuntimeError):
    """Helm would not render; the text is what it says."""


@dataclass(frozen=True)
class Release:
    """What one `helm template` gives."""

    objects: tuple[Json, ...]

    def get(self, kind: str, name: str) -> Json:
        """Raises KeyError with what there is."""
        found = [one for one in self.objects if one["kind"] == kind and one["metadata"]["name"] == name]
        if len(found) != 1:
            raise KeyError(f"{len(found)} of {kind} {name}; there are {self.names()}")
        return found[0]

    def names(self) -> list[str]:
        return sorted(f"{one['kind']} {one['metadata']['name']}" for one in self.objects)

    def of(self, kind: str) -> list[Json]:
        return [one for one in self.objects if one["kind"] == kind]

    def pod(self, kind: str, name: str) -> Json:
        """The pod's spec in a Deployment or StatefulSet."""
        return self.get(kind, name)["spec"]["template"]["spec"]

    def container(self, kind: str, name: str) -> Json:
        """The only container of such a pod."""
        (only,) = self.pod(kind, name)["containers"]
        return only


def environment(container: Json) -> Json:
    """name -> value, or what it is taken from."""
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container.get("env", ())}


def program(name: str) -> Path:
    """helm3 or helm4. Skips, or fails where FROSTLINE_REQUIRE_CLUSTER is 1."""
    found = folder() / name
    if not found.exists():
        text = f"no {name} in {folder()}: python -m tests.cluster.binaries builds it"
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(text)
        pytest.skip(text)
    return found


def helm(name: str, *arguments: str) -> str:
    """What a helm command prints. Raises Refused."""
    done = subprocess.run([program(name), *arguments], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


@functools.cache
def render(*settings: str, name: str = "helm4", release: str = "digits", values: tuple[Path, ...] = (DIGITS,),
           chart: Path = CHART, namespace: str = "research") -> Release:  # fmt: skip
    """settings: of --set-json, "a.b=[1]", which are values of that very type. Raises Refused."""
    files = [word for file in values for word in ("-f", str(file))]
    sets = [word for text in settings for word in ("--set-json", text)]
    text = helm(
        name, "template", release, str(chart), "--namespace", namespace, "--kube-version", KUBERNETES, *files, *sets
    )  # fmt: skip
    return Release(tuple(one for one in yaml.safe_load_all(text) if one))


EVERYTHING = (
    'kubernetes.monitoring={"service_monitor":true,"rules":true,"dashboard":true,"labels":{"release":"prometheus"}}',
    "placement.workers_per_pod=2",
    "kubernetes.trainer.gpus=2",
    "kubernetes.trainer.spot=true",
    'kubernetes.trainer.runtime_class="nvidia"',
    'kubernetes.trainer.priority_class="research"',
    'kubernetes.trainer.node_selector={"pool":"gpu"}',
    'kubernetes.trainer.tolerations=[{"key":"team","value":"vision","effect":"NoExecute","tolerationSeconds":60},{"operator":"Exists"}]',
    'kubernetes.trainer.limits={"memory":"64Gi","cpu":7.5,"hugepages-2Mi":1073741824}',
    'kubernetes.trainer.env={"NCCL_DEBUG":"INFO"}',
    'kubernetes.trainer.nccl={"socket_interface":"eth0","hca":"mlx5","gid_index":3}',
    'kubernetes.trainer.labels={"team":"vision"}',
    'kubernetes.trainer.annotations={"example.com/cost":"42"}',
    'kubernetes.controller.image={"repository":"example.com/controller","tag":"sha256:' + "0" * 64 + '","pull_policy":"Always"}',
    "cache.shards=3",
    'kubernetes.redis.password_secret="redis-password"',
    'kubernetes.hub_token_secret="hub"',
    'kubernetes.auth={"token_review":true,"tls_secret":"tls"}',
    'kubernetes.image_pull_secrets=["registry"]',
    'kubernetes.storage={"class_name":"nfs","size":"1Ti","node":"node-7"}',
    'kubernetes.network_policy={"metrics_from":{"name":"monitoring"},"trainer_egress":[{"ports":[{"port":8080}]}]}',
    'kubernetes.volumes=[{"name":"images","mount_path":"/data/images","source":{"persistentVolumeClaim":{"claimName":"images"}}},'
    '{"name":"models","mount_path":"/data/models","source":{"nfs":{"server":"10.0.0.1","path":"/models"}}}]',
)
"""Every toggle that goes together with the others."""
