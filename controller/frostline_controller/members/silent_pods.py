"""Deletion of pods whose worker has been silent for long, so that the cluster replaces them.

A worker that is given up for its silence may come back, for example when its node was cut off for a moment. A process that stands
still never comes back, and its pod counts as running for the cluster: a run that has too few workers without it would wait for
ever, and the pods that are handed back are those of the highest ordinals, silent or not. A process that its pod starts anew may
take as long as any start (`controller.start_timeout_seconds`), so the deletion waits for that time.

A leader that hears nobody may itself be the one that is cut off, from workers that train on, and not from the API server. It
deletes only pods that the cluster says are not ready: their own kubelets say so, or the cluster where their nodes are lost (a
pod stays ready without a controller). All processes of a run may stand still in ready pods, though, and a cut of the leader's own
network does not last: after READY_TIMES the time those pods go too.
"""

import logging

from frostline_controller.members.membership import GONE, Worker
from frostline_controller.members.removal import Removals
from frostline_controller.run.facts import RunFacts

log = logging.getLogger(__name__)

READY_TIMES = 10.0
"""How many times as long pods that are ready stay while no worker at all is heard."""


class SilentPods:
    """Checks in every round for pods whose workers were all given up and have been silent since."""

    def __init__(self, facts: RunFacts, removals: Removals) -> None:
        self._facts, self._removals = facts, removals
        self._warned = False

    async def advance(self, now: float) -> None:
        """Delete the pods of workers that have been silent for too long."""
        members = self._facts.members
        patience = max(self._facts.job.controller.start_timeout_seconds, members.dead_after_seconds)
        silent = self._silent(now - patience)
        if silent and all(now - worker.last_received >= members.lost_after_seconds for worker in members):
            silent = self._dead_whoever_is_cut_off(silent, now - READY_TIMES * patience, patience)
        else:
            self._warned = False
        for worker in silent:
            reason = f"it has been silent for {now - worker.last_received:.0f} s, and its pod is still there"
            log.error("silent worker taken away worker=%s pod=%s reason=%r", worker.worker_id, worker.pod_name, reason)
            await self._removals.take_away(worker.worker_id, reason)

    def _dead_whoever_is_cut_off(self, silent: list[Worker], received_since: float, patience: float) -> list[Worker]:
        """The silent workers whose pods may go though no worker is heard. Logs a warning where others stay, once.

        Args:
            silent: the workers whose pods would go.
            received_since: by the run's clock; pods of which nothing has been heard since then go, ready or not.
            patience: the seconds after which a silent worker's pod goes while others are heard.
        """
        ready = {pod.uid for pod in self._facts.cluster.pods if pod.ready}
        received = {worker.pod_uid for worker in self._facts.members if worker.last_received >= received_since}
        kept = [worker for worker in silent if worker.pod_uid in ready & received]
        if kept and not self._warned:
            self._warned = True
            log.warning(
                "no worker is heard, and the cluster says that their pods are ready: none of these is deleted within %.0f s. "
                "Look at the network of this controller's node; delete the controller's pod, so that another leads pods=%s",
                READY_TIMES * patience, ",".join(worker.pod_name for worker in kept),
            )  # fmt: skip
        return [worker for worker in silent if worker not in kept]

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
