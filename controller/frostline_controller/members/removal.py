"""Workers that are of no use any more: excluded, and their pods deleted, so that the cluster replaces them."""

from collections.abc import Mapping

from frostline_controller.run.facts import RunFacts
from frostline_controller.run.pods import Pods


class Removals:
    """Workers whose pods are to be deleted, with the reason, until it is done."""

    def __init__(self, facts: RunFacts, pods: Pods) -> None:
        self._facts, self._pods = facts, pods
        self._due: dict[str, str] = {}

    def add(self, reasons: Mapping[str, str]) -> None:
        """Have these workers' pods deleted with the next `advance`, or in the round after."""
        self._due |= reasons

    async def take_away(self, worker_id: str, reason: str) -> None:
        """Delete a worker's pod now."""
        self.add({worker_id: reason})
        await self.advance()

    async def advance(self) -> None:
        """Delete the pods of all that are due. The new generation fences; the kill follows (docs/protocols.md 7.3)."""
        members = self._facts.members
        for worker_id, reason in list(self._due.items()):
            worker = members.get(worker_id)
            members.exclude(worker_id, reason)
            if worker is not None:
                await self._pods.delete(worker.pod_uid)
            del self._due[worker_id]
