"""Planned faults of pods, nodes and services: those of the job's `faults` that the cluster carries out (docs/faults.md).

Each happens once: the process that first creates `<run>/cluster/faults/<index>` carries it out. Workers do the same for theirs,
so the folder lists every fault that has happened, and this module writes an event for each.
"""

import asyncio
import json
import logging
import os
import signal
import time

from frostline_contract.durable_files import create_durably
from frostline_contract.job.cluster import DEFAULT_PHASE, FAULTS_OF_A_WORKER, Fault
from frostline_contract.phases import ControllerPhase
from frostline_contract.worker_id import pod_uid_of
from frostline_controller.cluster.backend import RUNNING, ClusterBackend, PodInfo
from frostline_controller.faults.breakable import Breakable
from frostline_controller.members.membership import GONE
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore

log = logging.getLogger(__name__)

LEAVE_GRACE_SECONDS = 15.0
"""The grace period that a preemption notice gives a pod, in seconds (some clouds give no more)."""
FLUSH_SECONDS, LEFT_SECONDS = 5.0, 0.1
"""The most time in which streams take announcements, and that in which the announcements then leave this process before it is
killed, in seconds."""
OF_A_NODE = ("kill_node", "cut_node")
OF_THE_CLUSTER = ("kill_redis", "kill_cache_server")
NO_BREAKAGE = "a cluster breaks by itself; planned faults of nodes and services are for the local cluster (frostline run)"


class PlannedFaults:
    """The faults still to come. Where the job plans none, nothing is done and no file is read."""

    def __init__(self, facts: RunFacts, store: RunStore, outbox: Outbox, backend: ClusterBackend) -> None:
        self._facts, self._store, self._outbox, self._backend = facts, store, outbox, backend
        self._folder, faults = store.places.faults, facts.job.faults
        ours = {index: fault for index, fault in enumerate(faults) if fault.kind not in FAULTS_OF_A_WORKER}
        self._to_come = {index: fault for index, fault in ours.items() if fault.kind != "kill_controller"}
        self._kills = {index: fault for index, fault in ours.items() if fault.kind == "kill_controller"}
        self._unrecorded = set(range(len(faults)))
        self._looked_back = False

    async def advance(self) -> None:
        """Carry out the faults that are due at the step, and write events for those that have happened. Called once in each
        round."""
        if not self._unrecorded or self._facts.current is None or self._facts.ended:
            return
        for index, fault in list(self._to_come.items()):
            if self._facts.step >= fault.step:
                await self._carry_out(index, fault)
        await self._record()
        await self.at(ControllerPhase.STEP)

    async def at(self, phase: ControllerPhase) -> None:
        """Report that this controller is at `phase`; where its death is planned here, the call does not return."""
        for index, fault in list(self._kills.items()):
            planned = ControllerPhase.STEP if fault.phase == DEFAULT_PHASE else fault.phase
            if planned != phase or self._facts.current is None or self._facts.step < fault.step:
                continue
            del self._kills[index]
            if self._claim(index, fault, phase, []):
                await self._record()
                if phase == ControllerPhase.ANNOUNCED:
                    await self._outbox.streams.flushed(FLUSH_SECONDS)
                    await asyncio.sleep(LEFT_SECONDS)
                os.kill(os.getpid(), signal.SIGKILL)

    async def _carry_out(self, index: int, fault: Fault) -> None:
        pods = _hit(fault, self._facts.cluster.pods)
        if not pods and fault.kind not in OF_THE_CLUSTER:
            return  # its pod is being replaced: carried out when the pod runs
        del self._to_come[index]
        if not self._claim(index, fault, "step", pods):
            return
        if fault.kind == "leave":
            await asyncio.to_thread(self._backend.delete_pod, pods[0].name, LEAVE_GRACE_SECONDS)
        elif fault.kind == "kill_pod":
            await asyncio.to_thread(self._backend.delete_pod, pods[0].name, 0.0)
        else:
            cluster, pod = self._breakable(fault.kind), pods[0].name if pods else ""
            await asyncio.to_thread(cluster.break_machine, fault.kind, pod, fault.seconds)

    def _breakable(self, kind: str) -> Breakable:
        """Return the cluster as one that can be broken. Raises ValueError where it cannot be: the user's mistake."""
        if not isinstance(self._backend, Breakable):
            raise ValueError(f"{kind}: {NO_BREAKAGE}")
        return self._backend

    def _claim(self, index: int, fault: Fault, phase: str, pods: list[PodInfo]) -> bool:
        """Whether this controller carries out the fault. The description is on disk before the fault happens."""
        said = {
            "index": index,
            "kind": fault.kind,
            "worker_ids": self._workers_of({pod.uid for pod in pods}),
            "pods": [pod.name for pod in pods],
            "step": self._facts.step,
            "phase": phase,
            "generation": str(self._facts.current.generation) if self._facts.current else "",
            "lineage": self._facts.state.lineage,
            "pieces": [],
            "time_seconds": time.time(),
        }
        claimed = create_durably(self._folder / str(index), json.dumps(said))
        if claimed:
            log.warning("planned fault index=%s kind=%s step=%s pods=%s", index, fault.kind, self._facts.step, said["pods"])
        return claimed

    def _workers_of(self, uids: set[str]) -> list[str]:
        """Return the workers of these pods, also members that have not connected to this controller since it started."""
        facts = self._facts
        here = {worker.worker_id for worker in facts.members if worker.presence != GONE}
        return sorted(one for one in here | set(facts.awaited()) if pod_uid_of(one) in uids)

    async def _record(self) -> None:
        """Write an event for each fault that has happened, also for faults of workers and those that a predecessor did not
        report."""
        if not self._looked_back:
            self._looked_back = True
            self._unrecorded -= {line["index"] for line in self._store.events.all() if line["kind"] == "fault"}
        happened = {int(name) for name in os.listdir(self._folder) if name.isdigit()} if self._folder.is_dir() else set()
        for index in sorted(happened & self._unrecorded):
            said = json.loads((self._folder / str(index)).read_text(encoding="utf-8"))
            whom = f" of {', '.join(said['pods'])}" if said["pods"] else ""
            text = f"planned: {said['kind']}{whom} at step {said['step']} in {said['phase']}"
            self._unrecorded.remove(index)
            await self._outbox.event("fault", text, step=said["step"], index=index)


def _hit(fault: Fault, pods: list[PodInfo]) -> list[PodInfo]:
    """Return the running pods that the fault hits, its own pod first."""
    own = [pod for pod in pods if pod.ordinal == fault.worker and pod.phase == RUNNING]
    if fault.kind in OF_THE_CLUSTER or not own:
        return []
    neighbours = [pod for pod in pods if pod.node == own[0].node and pod.name != own[0].name]
    return own + neighbours if fault.kind in OF_A_NODE else own
