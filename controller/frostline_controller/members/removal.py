"""Workers that are of no use any more: excluded, and their pods deleted, so that the cluster replaces them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from frostline_contract.worker_id import pod_uid_of
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.pods import Pods
from frostline_controller.run.store import RunStore


class Removals:
    """Workers whose pods are to be deleted, with the reason, until it is done: by this controller, or by the one after it."""

    def __init__(self, facts: RunFacts, store: RunStore, pods: Pods) -> None:
        self._facts, self._pods, self._amendments = facts, pods, store.amendments
        for worker_id, reason in self._amendments.removals.items():  # of a controller that died before it deleted the pod
            facts.members.exclude(worker_id, reason)

    def add(self, reasons: Mapping[str, str]) -> None:
        """Have these workers' pods deleted with the next `advance`, or in the round after."""
        self._amendments.removals = {**self._amendments.removals, **reasons}

    @contextmanager
    def added_with_plan(self, reasons: Mapping[str, str]) -> Iterator[None]:
        """Have these workers removed once the plan without them, which is made in this context, is durable.

        One write makes both durable: a controller that dies after it has a successor that takes none of them in again. Where no
        plan comes of it nobody is removed.
        """
        before = self._amendments.removals
        self.add(reasons)
        try:
            yield
        except BaseException:
            self._amendments.removals = before
            raise

    async def take_away(self, worker_id: str, reason: str) -> None:
        """Delete a worker's pod now."""
        self.add({worker_id: reason})
        await self.advance()

    async def advance(self) -> None:
        """Delete the pods of all that are due. The new generation fences; the kill follows (docs/protocols.md 7.3)."""
        for worker_id, reason in self._amendments.removals.items():
            self._facts.members.exclude(worker_id, reason)
            await self._pods.delete(pod_uid_of(worker_id))
            left = self._amendments.removals
            self._amendments.removals = {one: why for one, why in left.items() if one != worker_id}
