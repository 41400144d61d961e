"""The job file's section `kubernetes`: settings that only a cluster has; the chart renders them, and a local run ignores them."""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from frostline_contract.job.section import Section, fixed, live

QuantityText = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$")]
Quantity = QuantityText | Annotated[int, Field(ge=0)] | Annotated[float, Field(ge=0)]
"""As Kubernetes writes it: 2, "500m", "16Gi"."""

REDIS_TAG = "7.2.16-alpine@sha256:29e8589c3f9ba699b5f7aa4b3c7733c58852a3626439e619aa0ee78de08c6ca0"
"""With its digest, so that whoever names another tag does not keep this one's."""
GPU = "nvidia.com/gpu"
NCCL_VARIABLES = {
    "socket_interface": "NCCL_SOCKET_IFNAME",
    "hca": "NCCL_IB_HCA",
    "gid_index": "NCCL_IB_GID_INDEX",
    "debug": "NCCL_DEBUG",
}
"""What `nccl` sets, by its field."""
OUR_VARIABLES = "FROSTLINE_"
SECRET_NAME = r"(?i)(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY)$"
"""Of a variable that holds a secret: it belongs into a Secret, since `env` can be read in pods' specs and job files."""
NAME = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$"
"""Of an existing object, or nothing."""
EXISTING = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"
OUR_MOUNTS = ("/frostline", "/tmp", "/dev", "/var/run", "/run", "/proc", "/sys", "/etc/frostline")


class ImageSection(Section):
    repository: str = live("", doc="Image without its tag; empty: ghcr.io/frostline/<role>.")
    tag: str = live("", doc="Tag, tag@sha256:..., or sha256:... alone; empty: the chart's appVersion.")
    digest: str = live(
        "",
        pattern="^(sha256:[0-9a-f]{64})?$",
        doc="Digest that the tag must have, sha256:...; empty: the tag's own, or whatever the registry gives.",
    )
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = live("IfNotPresent", doc="When a node asks the registry.")


class Toleration(Section):
    """A taint that pods bear, in Kubernetes' own words."""

    key: str = live("", doc="The taint's key; empty with operator Exists: every taint.")
    operator: Literal["Equal", "Exists"] = live("Equal", doc="Equal compares the value.")
    value: str | None = live(None, doc="The taint's value.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = live(None, doc="null: every effect.")
    tolerationSeconds: int | None = live(None, ge=0, doc="With NoExecute: how long a pod stays; null: for ever.")


class SecretKey(Section):
    """One key of an existing Secret."""

    secret: str = live(pattern=EXISTING, doc="The Secret's name.")
    key: str = live(pattern=r"^[-._A-Za-z0-9]{1,253}$", doc="Its key.")


class PodSection(Section):
    """Where pods of one role may run, and what they get."""

    image: ImageSection = live(ImageSection(), doc="Its container image.")
    requests: dict[str, Quantity] = live({}, doc="What the scheduler keeps free, by resource.")
    limits: dict[str, Quantity] = live({}, doc="What it may use at most, by resource.")
    node_selector: dict[str, str] = live({}, doc="Labels that its node must have.")
    tolerations: tuple[Toleration, ...] = live((), doc="Taints that it bears.")
    priority_class: str = live("", pattern=NAME, doc="Name of an existing PriorityClass; empty: the cluster's default.")
    env: dict[str, str] = live({}, doc="Further environment variables, e.g. NCCL_DEBUG. Those of FROSTLINE_ are the chart's.")
    secret_env: dict[str, SecretKey] = live({}, doc="Variables from Secrets, e.g. WANDB_API_KEY: {secret: wandb, key: api-key}.")
    env_from_secrets: tuple[str, ...] = live((), doc="Secrets whose every key becomes a variable.")
    annotations: dict[str, str] = live({}, doc="Further annotations of its pods.")
    labels: dict[str, str] = live({}, doc="Further labels of its pods.")

    @model_validator(mode="after")
    def _ours_are_ours(self) -> "PodSection":
        for name in (*self.env, *self.secret_env):
            if name.startswith(OUR_VARIABLES):
                raise ValueError(f"env holds {name}; variables that begin with {OUR_VARIABLES} are the chart's: remove it")
        for name in self.env:
            if re.search(SECRET_NAME, name):
                raise ValueError(
                    f"env holds {name}, by its name a secret: whoever may read pods or this file would read it; put it into a "
                    f"Secret and name that in secret_env: {{{name}: {{secret: NAME, key: KEY}}}}"
                )
            if name in self.secret_env:
                raise ValueError(f"{name} is in env and in secret_env; remove one of them")
        return self


class CapabilitiesSection(Section):
    """Linux capabilities of the trainers' containers; all others are dropped."""

    add: tuple[Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]*$")], ...] = live(
        (), doc="E.g. IPC_LOCK, for InfiniBand and RoCE; the namespace's Pod Security level must admit it (docs/clusters.md)."
    )


class NcclSection(Section):
    """How NCCL finds the network. Empty fields leave the choice to the library."""

    socket_interface: str = live("", pattern="^[-^=,.A-Za-z0-9_]*$", doc="NCCL_SOCKET_IFNAME, e.g. eth0 or ^docker0,lo.")
    hca: str = live("", pattern="^[-^=,.:A-Za-z0-9_]*$", doc="NCCL_IB_HCA: InfiniBand or RoCE adapters, e.g. mlx5.")
    gid_index: int | None = live(None, ge=0, doc="NCCL_IB_GID_INDEX, of RoCE; null: the library's choice.")
    debug: Literal["", "VERSION", "WARN", "INFO", "TRACE"] = live("", doc="NCCL_DEBUG: what the library logs.")


class TrainerPods(PodSection):
    """The StatefulSet whose pods train."""

    gpus: int = fixed(0, ge=0, le=64, doc="GPUs a pod; 0: CPU. With GPUs it is placement.workers_per_pod: one worker a GPU.")
    gpu_device_class: str = fixed(
        "",
        pattern=NAME,
        doc="DeviceClass of a DRA driver, e.g. gpu.nvidia.com: GPUs come by a ResourceClaimTemplate (Kubernetes 1.34). Empty: by the device plugin, as nvidia.com/gpu.",
    )
    capabilities: CapabilitiesSection = live(CapabilitiesSection(), doc="Linux capabilities.")
    nccl: NcclSection = live(NcclSection(), doc="NCCL's network.")
    runtime_class: str = live("", pattern=NAME, doc="RuntimeClass of the pods, e.g. nvidia; empty: the cluster's default.")
    spot: bool = live(
        False, doc="Bear the taints by which clouds mark spot nodes (GKE, AKS; EKS node groups have none of their own)."
    )
    grace_seconds: int = live(30, ge=5, le=3600, doc="From SIGTERM to SIGKILL; GKE's spot nodes give 15 at most.")
    start_seconds: int = live(
        900, ge=30, doc="Until an agent must have started its workers: images, model and data are loaded in it."
    )
    unreachable_seconds: int = live(
        10, ge=0, doc="How long pods stay bound to a node that is not ready or out of reach before they are replaced."
    )
    shared_memory: QuantityText = live(
        "1Gi", doc="Size of /dev/shm; it counts as the pod's memory. 1Gi is enough for NCCL between 8 GPUs of a pod."
    )
    spread_by: str = live("kubernetes.io/hostname", doc="Node label over whose values pods are spread; empty: not spread.")

    @model_validator(mode="after")
    def _gpus_once(self) -> "TrainerPods":
        for name, held in (("requests", self.requests), ("limits", self.limits)):
            if GPU in held:
                raise ValueError(f"{name} holds {GPU} {held[GPU]}; say it as gpus instead")
        if self.gpu_device_class and not self.gpus:
            raise ValueError(f"gpu_device_class is {self.gpu_device_class} and gpus is 0; set gpus to placement.workers_per_pod")
        return self

    @model_validator(mode="after")
    def _nccl_once(self) -> "TrainerPods":
        for name, variable in NCCL_VARIABLES.items():
            if getattr(self.nccl, name) not in ("", None) and variable in self.env:
                raise ValueError(f"nccl.{name} sets {variable}, which is in env too; remove one of them")
        return self


class RedisPods(PodSection):
    """Redis shards of the release; `cache.shards` says how many. Unused where cache.addresses names others."""

    password_secret: str = fixed(
        "", pattern=NAME, doc="Existing Secret whose key `password` Redis asks for; empty: none, behind the NetworkPolicy."
    )


class StorageSection(Section):
    """Where checkpoints and records lie: one volume that every pod of the run mounts."""

    claim: str = fixed("", pattern=NAME, doc="An existing PersistentVolumeClaim; empty: one is made.")
    class_name: str = fixed("", pattern=NAME, doc="StorageClass of the claim that is made; empty: the cluster's default.")
    size: QuantityText = fixed("50Gi", doc="Its size.")
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = fixed(
        "ReadWriteMany", doc="How the volume can be mounted. ReadWriteOnce: by pods of one node only, which `node` names."
    )
    node: str = fixed("", pattern=NAME, doc="Host name of the one node that all pods of the run are bound to; empty: any nodes.")
    keep: bool = live(True, doc="Keep the claim that was made when the release is uninstalled.")

    @model_validator(mode="after")
    def _reachable(self) -> "StorageSection":
        if self.access_mode == "ReadWriteOnce" and not self.node:
            raise ValueError(
                "access_mode is ReadWriteOnce and node is empty: pods on more than one node cannot mount it; "
                "use ReadWriteMany, or bind the run to one node by its host name"
            )
        return self


class VolumeSection(Section):
    """A volume with data or a model, mounted read-only into the trainers."""

    name: str = fixed(pattern=r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$", doc="Its name.")
    mount_path: str = fixed(pattern=r"^/[^:]*[^:/]$", doc="Where job fields such as data.path find it.")
    source: dict[str, Any] = fixed(
        doc="One volume source as Kubernetes writes it, e.g. {persistentVolumeClaim: {claimName: imagenet}}."
    )

    @model_validator(mode="after")
    def _one_place(self) -> "VolumeSection":
        if len(self.source) != 1:
            raise ValueError(
                f"volume {self.name}: source has {len(self.source)} keys; give exactly one, such as persistentVolumeClaim"
            )
        for taken in OUR_MOUNTS:
            if f"{self.mount_path}/".startswith(f"{taken}/"):
                raise ValueError(
                    f"volume {self.name}: mount_path {self.mount_path} lies in {taken}, which is the run's; choose another"
                )
        return self


class AuthSection(Section):
    """How callers of the controller and the cache server are known: by service account tokens, for this run alone."""

    token_seconds: int = live(3600, ge=600, le=86400, doc="Life of a projected token; the kubelet renews it.")
    token_review: bool = live(
        False, doc="Ask the API server about each token; needs a ClusterRoleBinding, which the chart then renders."
    )
    tls_secret: str = live(
        "",
        pattern=NAME,
        doc="Secret with tls.crt, tls.key and ca.crt for gRPC, read when a pod starts; empty: no TLS inside the cluster network.",
    )


class MonitoringSection(Section):
    service_monitor: bool = live(False, doc="Render a ServiceMonitor for the Prometheus operator.")
    rules: bool = live(False, doc="Render alerts as a PrometheusRule.")
    dashboard: bool = live(False, doc="Render a ConfigMap with a Grafana dashboard.")
    labels: dict[str, str] = live({}, doc="Labels by which an operator finds them.")
    interval_seconds: int = live(15, ge=1, doc="Between two scrapes.")


class NetworkPolicySection(Section):
    enabled: bool = live(
        True, doc="Let only the run's own pods talk to each other, and DNS, the API server and external Redis servers be asked."
    )
    api_ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = live(
        (443, 6443),
        min_length=1,
        doc="Ports at which the API server may be asked: that of its Service, and the one behind it where that is another (MicroK8s: 16443).",
    )
    metrics_from: dict[str, str] = live(
        {}, doc="Labels of the namespaces that may read metrics, result and report; empty: everybody may."
    )
    trainer_egress: tuple[dict[str, Any], ...] = live(
        (),
        doc="Further egress rules of trainers, as Kubernetes writes them. Port 443 is open by itself where the job names the hub.",
    )


class LeaseSection(Section):
    """Who of the controllers leads. Each time must be above the one before it."""

    retry_seconds: float = live(2.0, gt=0.0, doc="Between two tries.")
    renew_seconds: float = live(10.0, gt=0.0, doc="A leader that could not renew for so long stops.")
    duration_seconds: int = live(15, gt=0, doc="Silence after which another takes over.")

    @model_validator(mode="after")
    def _ordered(self) -> "LeaseSection":
        if not self.retry_seconds < self.renew_seconds < self.duration_seconds:
            raise ValueError(
                f"retry_seconds {self.retry_seconds:g}, renew_seconds {self.renew_seconds:g} and duration_seconds "
                f"{self.duration_seconds} must rise in this order"
            )
        return self


class KubernetesSection(Section):
    """How the chart lays the run out on a cluster."""

    controller: PodSection = live(
        PodSection(requests={"cpu": "100m", "memory": "192Mi"}, limits={"memory": "512Mi"}), doc="The controllers."
    )
    controller_replicas: int = live(2, ge=1, le=5, doc="Controllers; one leads.")
    trainer: TrainerPods = live(TrainerPods(requests={"cpu": 1, "memory": "4Gi"}), doc="The trainers.")
    cache_server: PodSection = live(
        PodSection(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "256Mi"}), doc="The cache server."
    )
    redis: RedisPods = live(
        RedisPods(image=ImageSection(repository="docker.io/library/redis", tag=REDIS_TAG), requests={"cpu": "250m"}),
        doc="Redis shards; their memory follows from cache.memory_bytes.",
    )
    storage: StorageSection = fixed(StorageSection(), doc="Checkpoints and records.")
    volumes: tuple[VolumeSection, ...] = fixed((), doc="Data and models.")
    hub_token_secret: str = fixed("", pattern=NAME, doc="Secret whose key `token` opens gated models and data sets; empty: none.")
    cache_secret: str = fixed(
        "",
        pattern=NAME,
        doc="Existing Secret whose key `secret` signs cached values; runs that share cache.addresses share it. Empty: the run's own.",
    )
    image_pull_secrets: tuple[str, ...] = live((), doc="Secrets for private registries.")
    auth: AuthSection = live(AuthSection(), doc="Who may call.")
    lease: LeaseSection = live(LeaseSection(), doc="Leader election.")
    network_policy: NetworkPolicySection = live(NetworkPolicySection(), doc="Who may talk to whom.")
    disruption_budget: bool = live(True, doc="Drains take one controller, and one trainer, at a time.")
    monitoring: MonitoringSection = live(MonitoringSection(), doc="Prometheus and Grafana.")

    @model_validator(mode="after")
    def _volumes_apart(self) -> "KubernetesSection":
        for what in ("name", "mount_path"):
            values = [getattr(volume, what) for volume in self.volumes]
            for value in values:
                if values.count(value) > 1:
                    raise ValueError(f"volumes: {what} {value} is there {values.count(value)} times; each needs its own")
        return self
