"""Pods whose workers cannot start: missing or other data, a damaged file, other initial weights. A run that trains goes on.

Before any generation has run such a mistake is everybody's, and ends the run at once. Afterwards it is that pod's: it is told,
counted, and tried again by whoever keeps the pod running (the kubelet, the local cluster), later each time. The run fails only
where too few workers are left, and each pod that is missing has been tried TRIES times.
"""

import logging
from dataclasses import dataclass

from frostline_contract.worker_id import pod_uid_of
from frostline_controller.run.ending import Ending
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox

log = logging.getLogger(__name__)

TRIES = 3
SHOWN = 2


@dataclass
class _Trouble:
    """Why the newest worker of a pod could not start. tries: workers that ended so since one has trained there."""

    text: str
    tries: int = 0
    told: str = ""


class StartFailures:
    """Kept by pod name: another pod of the same name stands in for it on the same claim, and often on the same node."""

    def __init__(self, facts: RunFacts, outbox: Outbox, ending: Ending) -> None:
        self._facts, self._outbox, self._ending = facts, outbox, ending
        self._troubles: dict[str, _Trouble] = {}

    @property
    def has_run(self) -> bool:
        """Whether a generation of this run has committed a step since it was started or resumed."""
        facts = self._facts
        return facts.current is not None and (not facts.state.between or facts.state.paused) and facts.step > 0

    def note(self, worker_id: str, text: str, pod_name: str = "") -> None:
        """A worker has ended, or was refused, for a reason that a person has to mend. pod_name: where it is known."""
        if not self.has_run:
            return
        trouble = self._troubles.setdefault(pod_name or self._pod_of(worker_id), _Trouble(text))
        trouble.text, trouble.tries = text, trouble.tries + 1
        self._facts.wake.set()

    async def advance(self) -> None:
        """Once a round: tell what is new, forget who trains again, end the run where too few are left."""
        facts, outbox = self._facts, self._outbox
        if facts.ended or not self.has_run:
            self._troubles.clear()
        for pod_name, trouble in list(self._troubles.items()):
            if self._trains(pod_name) or self._is_handed_back(pod_name):
                del self._troubles[pod_name]
            elif trouble.told != trouble.text:
                trouble.told = trouble.text
                await outbox.event("cannot_start", f"{pod_name} cannot start: {trouble.text}; it is tried again")
        away = {name: trouble for name, trouble in self._troubles.items() if name not in self._alive()}
        shown = "; ".join(f"{name}: {trouble.text}" for name, trouble in list(away.items())[:SHOWN])
        facts.trouble = f"{len(away)} workers cannot start: {shown}" if away else ""
        if away and self._too_few(away):
            self._ending.fail(f"too few workers are left: {facts.trouble}", user_mistake=True)

    def _too_few(self, away: dict[str, _Trouble]) -> bool:
        """No pod is left that could bring the run to its least number of workers, unless one of these starts at last."""
        facts = self._facts
        pods = {pod.name for pod in facts.cluster.pods} | self._alive()
        able = len(pods - away.keys()) * facts.job.placement.workers_per_pod
        return able < facts.job.placement.min_workers and all(trouble.tries >= TRIES for trouble in away.values())

    def _alive(self) -> set[str]:
        return {worker.pod_name for worker in self._facts.members if self._facts.members.is_alive(worker.worker_id)}

    def _trains(self, pod_name: str) -> bool:
        """A worker of the pod is there that has come as far as committing steps of the running generation."""
        plan = self._facts.current
        return plan is not None and any(
            worker.pod_name == pod_name
            and self._facts.members.is_alive(worker.worker_id)
            and worker.generation == plan.generation
            and worker.step > max(plan.start_step, 0)
            for worker in self._facts.members
        )

    def _is_handed_back(self, pod_name: str) -> bool:
        """The run has fewer pods by now."""
        tail = pod_name.rpartition("-")[2]
        return tail.isdigit() and 0 < self._facts.cluster.spec_replicas <= int(tail)

    def _pod_of(self, worker_id: str) -> str:
        """The name of the pod with the worker's uid; the uid where nobody knows the pod any more."""
        uid = pod_uid_of(worker_id)
        named = {worker.pod_uid: worker.pod_name for worker in self._facts.members}
        named |= {pod.uid: pod.name for pod in self._facts.cluster.pods}
        return named.get(uid, uid)
