"""The interface of the controller to its cluster: the same few operations for Kubernetes and for the local cluster."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

RUNNING, PENDING, SUCCEEDED, FAILED = "Running", "Pending", "Succeeded", "Failed"


class Conflict(Exception):
    """What a write tests no longer has the expected value, since another process wrote it. Read again and recompute."""


class ClusterError(OSError):
    """The cluster has refused a request, or could not be reached. The same request may succeed later.

    Attributes:
        remedy: what may help where waiting does not; empty: nothing is known.
    """

    remedy = ""


@dataclass(frozen=True)
class PodInfo:
    """One trainer pod.

    Attributes:
        phase: Pending, Running, Succeeded or Failed.
        started_at: Unix seconds; 0.0 before the pod runs.
    """

    name: str
    uid: str
    node: str
    phase: str
    started_at: float
    ready: bool

    @property
    def ordinal(self) -> int:
        """The pod's number in its StatefulSet: the last part of its name."""
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
        """The uids of the existing pods."""
        return frozenset(pod.uid for pod in self.pods)


def require_annotations(now: dict[str, str], test: dict[str, str | None]) -> None:
    """Raise Conflict where an annotation is not as a write tests it. None: the annotation must be absent."""
    for key, expected in test.items():
        if now.get(key) != expected:
            raise Conflict(f"{key} is {now.get(key)!r}, expected {expected!r}")


def require_replicas(now: int, test: int | None) -> None:
    """Raise Conflict where spec.replicas is `now` and a write tests that it is another number. None: the write tests nothing."""
    if test is not None and now != test:
        raise Conflict(f"spec.replicas is {now}, expected {test}")


class ClusterBackend(Protocol):
    """The operations of a cluster: blocking calls, each safe from any thread and any process.

    Each raises OSError where the cluster cannot be reached.
    """

    def read(self) -> ClusterState:
        """Return the StatefulSet and its pods."""
        ...

    def patch_annotations(self, changes: dict[str, str | None], test: dict[str, str | None]) -> None:
        """Set (or, for None, remove) annotations where every key of `test` has its value (None: the annotation is absent).

        Raises Conflict where a key has another value; then nothing was changed.
        """
        ...

    def scale(self, replicas: int, test: int | None = None) -> None:
        """Set spec.replicas. Scaling down removes the highest ordinals.

        Args:
            replicas: the new number.
            test: the number that spec.replicas must still have; None: any. Raises Conflict where it has another one.
        """
        ...

    def delete_pod(self, name: str, grace_seconds: float) -> None:
        """Delete a pod. While spec.replicas requires it, another pod of its name with another uid replaces it."""
        ...

    def changed(self) -> bool:
        """Whether something may have changed since the last `read`: a cheap check. True where only reading can decide."""
        ...

    def emit_event(self, kind: str, reason: str, message: str) -> None:
        """Emit an event for people.

        Args:
            kind: Normal or Warning.
            reason: one CamelCase word.
            message: the text.
        """
        ...
