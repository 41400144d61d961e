"""All that the controller asks of a cluster: the same few verbs for Kubernetes and for the laptop."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

RUNNING, PENDING, SUCCEEDED, FAILED = "Running", "Pending", "Succeeded", "Failed"


class Conflict(Exception):
    """A tested annotation no longer has the expected value: somebody else wrote it. Read again and recompute."""


@dataclass(frozen=True)
class PodInfo:
    """One trainer pod. started_at: Unix seconds, 0.0 before it runs. phase: Pending, Running, Succeeded or Failed."""

    name: str
    uid: str
    node: str
    phase: str
    started_at: float
    ready: bool

    @property
    def ordinal(self) -> int:
        """The pod's number in its StatefulSet, the last part of its name."""
        return int(self.name.rsplit("-", 1)[-1])


@dataclass(frozen=True)
class ClusterState:
    """The trainer StatefulSet and its pods at one moment."""

    annotations: dict[str, str] = field(default_factory=dict)
    spec_replicas: int = 0
    resource_version: int = 0
    pods: list[PodInfo] = field(default_factory=list)

    @cached_property
    def uids(self) -> frozenset[str]:
        """Of the pods that there are."""
        return frozenset(pod.uid for pod in self.pods)


class ClusterBackend(Protocol):
    """Blocking calls, each safe from any thread and any process. Raise OSError where the cluster cannot be reached."""

    def read(self) -> ClusterState:
        """The StatefulSet and its pods."""
        ...

    def patch_annotations(self, changes: dict[str, str | None], test: dict[str, str | None]) -> None:
        """Set (or, for None, remove) annotations where every key of `test` has its value (None: is absent).

        Raises Conflict where it has not; then nothing was changed.
        """
        ...

    def scale(self, replicas: int) -> None:
        """Set spec.replicas. Scaling down removes the highest ordinals."""
        ...

    def delete_pod(self, name: str, grace_seconds: float) -> None:
        """Delete a pod; while spec.replicas asks for it, another of its name replaces it, with another uid."""
        ...

    def break_machine(self, kind: str, pod: str, seconds: float) -> None:
        """Carry out a planned fault of what is under the pods: kill_node, cut_node (for so long), kill_redis, kill_cache_server.

        pod: one on that node; empty for a service. Raises ValueError where the cluster offers no such thing.
        """
        ...

    def changed(self) -> bool:
        """Cheap: whether something may have changed since the last `read`. True where only reading can say it."""
        ...

    def emit_event(self, kind: str, reason: str, message: str) -> None:
        """Tell people what happened. kind: Normal or Warning; reason: one CamelCase word."""
        ...
