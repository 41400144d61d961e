"""Deletion of pods whose worker has been silent for long, so that the cluster replaces them.

A worker that is given up for its silence may come back, for example when its node was cut off for a moment. A process that stands
still never comes back, and its pod counts as running for the cluster: a run that has too few workers without it would wait for
ever, and the pods that are handed back are those of the highest ordinals, silent or not. A process that its pod starts anew may
take as long as any start (`controller.start_timeout_seconds`), so the deletion waits for that time.
"""

import logging

from frostline_controller.members.membership import GONE, Worker
from frostline_controller.members.removal import Removals
from frostline_controller.run.facts import RunFacts

log = logging.getLogger(__name__)


class SilentPods:
    """Checks in every round for pods whose workers were all given up and have been silent since."""

    def __init__(self, facts: RunFacts, removals: Removals) -> None:
        self._facts, self._removals = facts, removals

    async def advance(self, now: float) -> None:
        """Delete the pods of workers that have been silent for too long."""
        patience = max(self._facts.job.controller.start_timeout_seconds, self._facts.members.dead_after_seconds)
        for worker in self._silent(now - patience):
            reason = f"it has been silent for {now - worker.last_received:.0f} s, and its pod is still there"
            log.error("silent worker taken away worker=%s pod=%s reason=%r", worker.worker_id, worker.pod_name, reason)
            await self._removals.take_away(worker.worker_id, reason)

    def _silent(self, received_since: float) -> list[Worker]:
        members, there = self._facts.members, self._facts.cluster.uids
        given_up = [
            worker
            for worker in members
            if worker.presence == GONE
            and worker.pod_uid in there
            and not members.has_ended(worker.worker_id)
            and not members.why_excluded(worker.worker_id)
        ]
        if not given_up:  # in nearly every round of a run
            return []
        in_use = {worker.pod_uid for worker in members if worker.presence != GONE or worker.last_received >= received_since}
        return [worker for worker in given_up if worker.pod_uid not in in_use]
