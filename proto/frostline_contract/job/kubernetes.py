"""What only a cluster has: the job file's `kubernetes` section, which the chart renders and a local run ignores."""

from typing import Any, Literal

from pydantic import model_validator

from frostline_contract.job.section import Section, fixed, live

Quantity = str | int | float
"""As Kubernetes writes it: 2, "500m", "16Gi"."""


class ImageSection(Section):
    repository: str = live("", doc="Image without its tag; empty: ghcr.io/frostline/<role>.")
    tag: str = live("", doc="Tag or, as sha256:..., digest; empty: the chart's appVersion.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = live("IfNotPresent", doc="When a node asks the registry.")


class PodSection(Section):
    """Where pods of one role may run, and what they get."""

    image: ImageSection = live(ImageSection(), doc="Its container image.")
    requests: dict[str, Quantity] = live({}, doc="What the scheduler keeps free, by resource.")
    limits: dict[str, Quantity] = live({}, doc="What it may use at most, by resource.")
    node_selector: dict[str, str] = live({}, doc="Labels that its node must have.")
    tolerations: tuple[dict[str, Any], ...] = live((), doc="Taints that it bears, as Kubernetes writes them.")
    priority_class: str = live("", doc="Name of a PriorityClass; empty: the cluster's default.")
    annotations: dict[str, str] = live({}, doc="Further annotations of its pods.")
    labels: dict[str, str] = live({}, doc="Further labels of its pods.")


class TrainerPods(PodSection):
    """The StatefulSet whose pods train."""

    gpus: int = fixed(0, ge=0, doc="nvidia.com/gpu a pod; 0: CPU. With GPUs it is placement.workers_per_pod.")
    grace_seconds: int = live(30, ge=5, doc="From SIGTERM to SIGKILL; spot nodes give 15 or less.")
    unreachable_seconds: int = live(
        10, ge=0, doc="How long pods stay bound to a node that is not ready or out of reach before they are replaced."
    )
    shared_memory: str = live("1Gi", doc="Size of /dev/shm.")
    spread_by: str = live("kubernetes.io/hostname", doc="Node label over whose values pods are spread; empty: not spread.")


class RedisPods(PodSection):
    """Redis shards of the release; `cache.shards` says how many. Unused where cache.addresses names others."""

    password_secret: str = fixed(
        "", doc="Existing Secret whose key `password` Redis asks for; empty: none, behind the NetworkPolicy."
    )


class StorageSection(Section):
    """Where checkpoints and records lie: one volume that every pod of the run mounts."""

    claim: str = fixed("", doc="An existing PersistentVolumeClaim; empty: one is made.")
    class_name: str = fixed("", doc="StorageClass of the claim that is made; empty: the cluster's default.")
    size: str = fixed("50Gi", doc="Its size.")
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = fixed("ReadWriteMany", doc="ReadWriteOnce: all pods on one node.")
    keep: bool = live(True, doc="Keep the claim that was made when the release is uninstalled.")


class VolumeSection(Section):
    """A volume with data or a model, mounted read-only into the trainers."""

    name: str = fixed(pattern=r"^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$", doc="Its name.")
    mount_path: str = fixed(pattern=r"^/", doc="Where job fields such as data.path find it.")
    source: dict[str, Any] = fixed(
        doc="A volume source as Kubernetes writes it, e.g. {persistentVolumeClaim: {claimName: imagenet}}."
    )


class AuthSection(Section):
    """How callers of the controller and the cache server are known: by service account tokens, for this run alone."""

    token_seconds: int = live(3600, ge=600, doc="Life of a projected token; the kubelet renews it.")
    token_review: bool = live(False, doc="Ask the API server about each token; needs a ClusterRoleBinding.")
    tls_secret: str = live("", doc="Secret with tls.crt, tls.key and ca.crt for gRPC; empty: no TLS inside the cluster network.")


class MonitoringSection(Section):
    service_monitor: bool = live(False, doc="Render a ServiceMonitor for the Prometheus operator.")
    rules: bool = live(False, doc="Render alerts as a PrometheusRule.")
    dashboard: bool = live(False, doc="Render a ConfigMap with a Grafana dashboard.")
    labels: dict[str, str] = live({}, doc="Labels by which an operator finds them.")


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
    controller: PodSection = live(
        PodSection(requests={"cpu": "100m", "memory": "192Mi"}, limits={"memory": "512Mi"}), doc="The controllers."
    )
    controller_replicas: int = live(2, ge=1, le=5, doc="Controllers; one leads.")
    trainer: TrainerPods = live(TrainerPods(requests={"cpu": 1, "memory": "4Gi"}), doc="The trainers.")
    cache_server: PodSection = live(
        PodSection(requests={"cpu": "100m", "memory": "128Mi"}, limits={"memory": "256Mi"}), doc="The cache server."
    )
    redis: RedisPods = live(RedisPods(requests={"cpu": "250m"}), doc="Redis shards.")
    storage: StorageSection = fixed(StorageSection(), doc="Checkpoints and records.")
    volumes: tuple[VolumeSection, ...] = fixed((), doc="Data and models.")
    hub_token_secret: str = fixed("", doc="Secret whose key `token` opens gated models and data sets; empty: none.")
    image_pull_secrets: tuple[str, ...] = live((), doc="Secrets for private registries.")
    auth: AuthSection = live(AuthSection(), doc="Who may call.")
    lease: LeaseSection = live(LeaseSection(), doc="Leader election.")
    network_policy: bool = live(True, doc="Let only the run's own pods talk to each other, and DNS and the API server be asked.")
    disruption_budget: bool = live(True, doc="Drains take one controller, and one trainer, at a time.")
    monitoring: MonitoringSection = live(MonitoringSection(), doc="Prometheus and Grafana.")
