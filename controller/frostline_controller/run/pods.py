"""The run's pods: read from the cluster, scaled to a number, deleted one by one."""

import asyncio
import logging

from frostline_controller.cluster.backend import ClusterBackend, Conflict
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.store import RunStore

log = logging.getLogger(__name__)


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

    async def scale(self, pods: int, known: int) -> bool:
        """Write spec.replicas, unless a user has written another number that no round has taken yet: it is the next request.

        The intent is durable first, so that a successor finishes the write and does not take it for a request. Returns whether it
        was written.

        Args:
            pods: the new number.
            known: the number that it replaces: the controller's own, or that of a request which has been taken.
        """
        state = self._facts.state
        again = (state.replicas, state.scaling_from) == (pods, known)  # of a write before, nobody knows whether it was done
        await self._store.commit(replicas=pods, scaling_from=known)
        self._store.may_write()  # no fence: the successor would take a late number for a user's request
        try:
            await asyncio.to_thread(self._backend.scale, pods, known)
        except Conflict as conflict:  # not read here: until the next round reads it, nothing may replace the user's number
            if again and await self._is_done(pods):
                return True
            log.info("not scaled pods=%s reason=%s", pods, conflict)
            await self._store.commit(replicas=known, scaling_from=-1)  # any other number is a request, also the one before
            return False
        log.info("scaled pods=%s", pods)
        await self._store.commit(scaling_from=-1)
        await self.reread()
        return True

    async def _is_done(self, pods: int) -> bool:
        """Whether the cluster has carried out a write whose answer was lost; then the write is finished. The cluster that refuses
        a write is read afresh, so that the number is no older than the refusal."""
        await self.reread()
        if self._facts.cluster.spec_replicas != pods:
            return False
        log.info("scaled by a write whose answer was lost pods=%s", pods)
        await self._store.commit(scaling_from=-1)
        return True

    async def annotate(self, changes: dict[str, str | None], tests: dict[str, str | None]) -> None:
        """Write annotations that are not part of the durable state. Raises Conflict where one of `tests` does not hold."""
        await asyncio.to_thread(self._backend.patch_annotations, changes, tests)

    async def delete(self, uid: str) -> None:
        """Delete the pod with this uid at once, if it still exists."""
        self._store.may_write()
        for pod in [pod for pod in self._facts.cluster.pods if pod.uid == uid]:
            await asyncio.to_thread(self._backend.delete_pod, pod.name, 0.0)
