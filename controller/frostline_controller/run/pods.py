"""The run's pods: read from the cluster, scaled to a number, deleted one by one."""

import asyncio

from frostline_controller.cluster.backend import ClusterBackend
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.store import RunStore


class Pods:
    """The calls of the cluster's backend that concern pods. Only the reconciler's task writes through this class.

    Writes raise the error of `RunStore.may_write` where this controller no longer leads.
    """

    def __init__(self, facts: RunFacts, store: RunStore, backend: ClusterBackend) -> None:
        self._facts, self._store, self._backend = facts, store, backend

    def changed(self) -> bool:
        """Whether the cluster may have changed since it was last read. Cheap."""
        return self._backend.changed()

    async def reread(self) -> None:
        """Read the cluster again. Done after each write, so that the state before it is not taken for a new request."""
        self._facts.cluster = await asyncio.to_thread(self._backend.read)

    async def scale(self, pods: int) -> None:
        """Write spec.replicas. The intent is durable first, so that a successor finishes the write and does not take it for a
        request."""
        await self._store.commit(replicas=pods, scaling_from=self._facts.cluster.spec_replicas)
        self._store.may_write()  # no fence: the successor would take a late number for a user's request
        await asyncio.to_thread(self._backend.scale, pods)
        await self._store.commit(scaling_from=-1)
        await self.reread()

    async def annotate(self, changes: dict[str, str | None], tests: dict[str, str | None]) -> None:
        """Write annotations that are not part of the durable state. Raises Conflict where one of `tests` does not hold."""
        await asyncio.to_thread(self._backend.patch_annotations, changes, tests)

    async def delete(self, uid: str) -> None:
        """Delete the pod with this uid at once, if it still exists."""
        self._store.may_write()
        for pod in [pod for pod in self._facts.cluster.pods if pod.uid == uid]:
            await asyncio.to_thread(self._backend.delete_pod, pod.name, 0.0)
