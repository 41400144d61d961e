"""Pods whose workers cannot start: missing or other data, a damaged file, other initial weights. A run that trains goes on.

Before any generation has run, such a mistake concerns all workers, and ends the run at once. Afterwards it concerns that pod
only: it is reported, counted, and the pod is tried again by the kubelet or the local cluster, after a longer wait each time. The
run fails only where too few workers are left, and each missing pod has been tried TRIES times.
"""

import logging
from dataclasses import dataclass, field

from frostline_contract.worker_id import ordinal_of, pod_uid_of
from frostline_controller.run.ending import Ending
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox

log = logging.getLogger(__name__)

TRIES = 3
SHOWN = 2


@dataclass
class _Trouble:
    """The reason why the newest worker of a pod could not start.

    Attributes:
        text: the reason, in words.
        tries: number of such ends since a worker last trained in the pod.
        unannounced: the reasons that no event has given yet, in order; one that repeats the reason before it is announced once.
    """

    text: str = ""
    tries: int = 0
    unannounced: list[str] = field(default_factory=list)


class StartFailures:
    """Start failures by pod name: a replacement of the same name has the same claim, and often the same node."""

    def __init__(self, facts: RunFacts, outbox: Outbox, ending: Ending) -> None:
        self._facts, self._outbox, self._ending = facts, outbox, ending
        self._troubles: dict[str, _Trouble] = {}

    @property
    def has_run(self) -> bool:
        """Whether a generation of this run has committed a step since it was started or resumed."""
        facts = self._facts
        return facts.current is not None and (not facts.state.between or facts.state.paused) and facts.step > 0

    def note(self, worker_id: str, text: str, pod_name: str = "") -> None:
        """Record that a worker has ended, or was refused, for a reason that a person has to correct.

        Args:
            worker_id: the worker.
            text: the reason, in words.
            pod_name: the worker's pod; empty where the caller does not know it.
        """
        if not self.has_run:
            return
        trouble = self._troubles.setdefault(pod_name or self._pod_of(worker_id), _Trouble())
        if text != trouble.text:
            trouble.unannounced.append(text)
        trouble.text, trouble.tries = text, trouble.tries + 1
        self._facts.wake.set()

    async def advance(self) -> None:
        """Write events for new failures, forget pods that train again, end the run where too few are left. Called once in each
        round."""
        facts, outbox = self._facts, self._outbox
        if facts.ended or not self.has_run:
            self._troubles.clear()
        for pod_name, trouble in list(self._troubles.items()):
            if self._trains(pod_name) or self._is_handed_back(pod_name):
                del self._troubles[pod_name]
            while trouble.unannounced:
                await outbox.event("cannot_start", f"{pod_name} cannot start: {trouble.unannounced.pop(0)}; it is tried again")
        away = {name: trouble for name, trouble in self._troubles.items() if name not in self._alive()}
        shown = "; ".join(f"{name}: {trouble.text}" for name, trouble in list(away.items())[:SHOWN])
        facts.trouble = f"{len(away)} workers cannot start: {shown}" if away else ""
        if away and self._too_few(away):
            self._ending.fail(f"too few workers are left: {facts.trouble}", user_mistake=True)

    def _too_few(self, away: dict[str, _Trouble]) -> bool:
        """Whether the remaining pods cannot bring the run to its least number of workers, and all failed pods were tried often
        enough."""
        facts = self._facts
        pods = {pod.name for pod in facts.cluster.pods} | self._alive()
        able = len(pods - away.keys()) * facts.job.placement.workers_per_pod
        return able < facts.job.placement.min_workers and all(trouble.tries >= TRIES for trouble in away.values())

    def _alive(self) -> set[str]:
        return {worker.pod_name for worker in self._facts.members if self._facts.members.is_alive(worker.worker_id)}

    def _trains(self, pod_name: str) -> bool:
        """Whether a worker of the pod has committed steps of the running generation."""
        plan = self._facts.current
        return plan is not None and any(
            worker.pod_name == pod_name
            and self._facts.members.is_alive(worker.worker_id)
            and worker.generation == plan.generation
            and worker.step > max(plan.start_step, 0)
            for worker in self._facts.members
        )

    def _is_handed_back(self, pod_name: str) -> bool:
        """Whether the pod is no longer wanted, since the run has fewer pods by now."""
        return 0 < self._facts.cluster.spec_replicas <= ordinal_of(pod_name)

    def _pod_of(self, worker_id: str) -> str:
        """Return the name of the pod with the worker's uid; the uid where the pod is no longer known."""
        uid = pod_uid_of(worker_id)
        named = {worker.pod_uid: worker.pod_name for worker in self._facts.members}
        named |= {pod.uid: pod.name for pod in self._facts.cluster.pods}
        return named.get(uid, uid)
