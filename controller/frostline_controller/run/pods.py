"""The run's pods: read from the cluster, asked for by number, deleted one by one."""

import asyncio

from frostline_controller.cluster.backend import ClusterBackend
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.store import RunStore


class Pods:
    """Calls of the cluster's backend that change which pods there are. Only the reconciler's task writes through it."""

    def __init__(self, facts: RunFacts, store: RunStore, backend: ClusterBackend) -> None:
        self._facts, self._store, self._backend = facts, store, backend

    def changed(self) -> bool:
        """Cheap: whether the cluster may be another than when it was read last."""
        return self._backend.changed()

    async def reread(self) -> None:
        """Read the cluster again; after a write, so that what was there before is no new request."""
        self._facts.cluster = await asyncio.to_thread(self._backend.read)

    async def scale(self, pods: int) -> None:
        """Write spec.replicas. A successor finishes it, and takes no half-done write for a person's request."""
        await self._store.commit(replicas=pods, scaling_from=self._facts.cluster.spec_replicas)
        await asyncio.to_thread(self._backend.scale, pods)
        await self._store.commit(scaling_from=-1)
        await self.reread()

    async def annotate(self, changes: dict[str, str | None], tests: dict[str, str | None]) -> None:
        """Write annotations of the run's object that are no part of the durable state. Raises Conflict where a test fails."""
        await asyncio.to_thread(self._backend.patch_annotations, changes, tests)

    async def delete(self, uid: str) -> None:
        """Delete the pod with this uid at once, where it is still there."""
        for pod in [pod for pod in self._facts.cluster.pods if pod.uid == uid]:
            await asyncio.to_thread(self._backend.delete_pod, pod.name, 0.0)
