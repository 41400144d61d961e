"""Pods whose worker has been silent for long: deleted, so that the cluster puts others in their place.

A worker that is given up for its silence may come back: its node was cut off for a moment. One whose process stands still never
does, and its pod counts as running for the cluster: a run that has too few workers without it would wait for ever, and pods that
are handed back are those of the highest ordinals, silent or not. A process that its pod starts anew takes as long as any start
may (`controller.start_timeout_seconds`), so that long is waited.
"""

import logging

from frostline_controller.members.membership import GONE, Worker
from frostline_controller.members.removal import Removals
from frostline_controller.run.facts import RunFacts

log = logging.getLogger(__name__)


class SilentPods:
    """Looks in every round for pods all of whose workers were given up and have been silent since."""

    def __init__(self, facts: RunFacts, removals: Removals) -> None:
        self._facts, self._removals = facts, removals

    async def advance(self, now: float) -> None:
        """Delete the pod of whoever has been silent for too long."""
        patience = max(self._facts.job.controller.start_timeout_seconds, self._facts.members.dead_after_seconds)
        for worker in self._silent(now - patience):
            reason = f"it has been silent for {now - worker.last_heard:.0f} s, and its pod is still there"
            log.error("silent worker taken away worker=%s pod=%s reason=%r", worker.worker_id, worker.pod_name, reason)
            await self._removals.take_away(worker.worker_id, reason)

    def _silent(self, heard_before: float) -> list[Worker]:
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
        in_use = {worker.pod_uid for worker in members if worker.presence != GONE or worker.last_heard >= heard_before}
        return [worker for worker in given_up if worker.pod_uid not in in_use]
