"""Removal of workers: they are excluded and their pods deleted, so that the cluster replaces them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from frostline_contract.worker_id import pod_uid_of
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.pods import Pods
from frostline_controller.run.store import RunStore


class Removals:
    """The workers whose pods have to be deleted, with the reasons. The list is durable: a successor finishes it."""

    def __init__(self, facts: RunFacts, store: RunStore, pods: Pods) -> None:
        self._facts, self._pods, self._amendments = facts, pods, store.amendments
        for worker_id, reason in self._amendments.removals.items():  # of a controller that died before it deleted the pod
            facts.members.exclude(worker_id, reason)

    def add(self, reasons: Mapping[str, str]) -> None:
        """Add workers; the next `advance` deletes their pods, or a later one if that fails."""
        self._amendments.removals = {**self._amendments.removals, **reasons}

    @contextmanager
    def added_with_plan(self, reasons: Mapping[str, str]) -> Iterator[None]:
        """Add workers together with the plan without them, which is made inside this context.

        One write makes the plan and the removals durable, so no successor of this controller takes these workers in again. Where
        no plan is made, nobody is removed.
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
        """Delete the pods of all workers in the list. The new generation has fenced them before (docs/protocols.md 7.3)."""
        for worker_id, reason in self._amendments.removals.items():
            self._facts.members.exclude(worker_id, reason)
            await self._pods.delete(pod_uid_of(worker_id))
            left = self._amendments.removals
            self._amendments.removals = {one: why for one, why in left.items() if one != worker_id}
