"""How many pods the run holds: what a person asked for, and with objective "cost" no more than the plan uses (PROTOCOLS 10).

Scale requests and the annotation `frostline.io/requested-workers` are one wish: an upper limit on the workers, 0 to suspend.
"""

import asyncio
import logging

from frostline_contract.annotations import REQUESTED_WORKERS
from frostline_controller.cluster.backend import Conflict
from frostline_controller.service.adapting import Adapting
from frostline_controller.service.choosing import Choosing
from frostline_controller.service.reshaping import Reshaping
from frostline_controller.service.run import Run

log = logging.getLogger(__name__)

SCALE_REQUEST, ANNOTATION = "a scale request", "annotation"


class Sizing:
    """Writes spec.replicas: once for a plan or a request that changes it. The last to act in a round, on what is settled."""

    def __init__(self, run: Run, choosing: Choosing, adapting: Adapting, reshaping: Reshaping) -> None:
        self._run, self._choosing, self._adapting, self._reshaping = run, choosing, adapting, reshaping
        self._grown_at = run.clock()

    async def start_pods(self) -> None:
        """Ask for the pods that the run wants, where nobody has yet."""
        await self._finish_write()
        if self._run.state.replicas < 0 and not self._run.ended:
            await self._scale(self._wanted_pods())

    async def request_workers(self, workers: int, by: str) -> None:
        """At most so many workers from now on (-1: the job's number), answered by one scale and one event."""
        run = self._run
        await run.commit(requested_workers=workers)
        await self._scale(self._wanted_pods())
        asked = f"{workers} workers" if workers >= 0 else "no limit on the workers"
        self._adapting.ask(f"{asked} by {by}")
        await run.event("command", f"{by}: {asked}, answered by {self._choosing.wanted_workers()}")

    async def take_requests(self) -> tuple[str, str] | None:
        """Take what a person wrote to /scale or to the annotation. Returns (suspend or resume, who asked) where it is that."""
        run = self._run
        if run.state.replicas < 0:
            return None
        await self._finish_write()
        if run.cluster.spec_replicas != run.state.replicas:
            return await self._take_limit(run.cluster.spec_replicas * run.job.placement.workers_per_pod, SCALE_REQUEST)
        text = run.cluster.annotations.get(REQUESTED_WORKERS)
        known = str(run.state.requested_workers) if run.state.requested_workers >= 0 else None
        if text == known:
            return None
        if text is not None and not text.strip().isdecimal():
            try:
                await asyncio.to_thread(run.backend.patch_annotations, {REQUESTED_WORKERS: known}, {REQUESTED_WORKERS: text})
            except Conflict:
                return None  # it was changed meanwhile: read again at the next round
            await run.reread()
            await run.event("command", f"refused: {REQUESTED_WORKERS} is {text!r}; it must be a number of workers, 0 to suspend")
            return None
        return await self._take_limit(int(text) if text is not None else -1, ANNOTATION)

    async def _take_limit(self, workers: int, by: str) -> tuple[str, str] | None:
        """workers: -1 lifts the limit."""
        run = self._run
        before = run.state.requested_workers
        if run.ended and run.state.state != "suspended":
            if by == SCALE_REQUEST:
                await self._scale(0)
                await run.event("command", f"refused: {by} for {workers} workers, the run is {run.state.state}")
                return None
            await run.commit(requested_workers=workers)
            await run.reread()
            return None
        if workers == 0 or run.ended:
            await run.commit(
                requested_workers=workers, **({"replicas": run.cluster.spec_replicas} if by == SCALE_REQUEST else {})
            )
            await run.reread()
            if run.ended:
                return ("resume", by) if workers != 0 and (by == SCALE_REQUEST or before == 0) else None
            return ("suspend", by) if run.state.state != "draining" else None
        await self.request_workers(workers, by)
        return None

    async def advance(self) -> None:
        """With objective "cost": hand back pods that the plan does not use, and take them again when the planner wants more."""
        run = self._run
        if run.job.placement.objective != "cost" or run.current is None or run.state.replicas < 1:
            return
        if self._reshaping.busy or self._adapting.wish:
            return
        wanted, held = self._choosing.wanted_by_plan, run.state.replicas
        pods = -(-wanted // run.job.placement.workers_per_pod)
        if pods > held:
            await run.event("join", f"{pods - held} pods taken again: the planner wants {wanted} workers")
            await self._scale(pods)
        elif not wanted:
            await self._hand_back()

    async def _hand_back(self) -> None:
        """The highest ordinals go, down to the highest that a member has; never while pods are still starting."""
        run = self._run
        assert run.current is not None
        per_pod, members = run.job.placement.workers_per_pod, run.current.placement.workers
        held = run.state.replicas
        there = [worker for worker in run.members.available() if worker.ordinal < held]
        starting = len(there) < held * per_pod and run.clock() - self._grown_at < run.job.controller.start_timeout_seconds
        settled = [worker for worker in there if worker.worker_id in members and worker.generation == run.current.generation]
        if starting or len(settled) < len(members):
            return
        pods = max(max(worker.ordinal for worker in settled) + 1, -(-run.job.placement.min_workers // per_pod))
        if pods >= held:
            return
        await run.event("leave", f"{held - pods} of {held} pods handed back: the plan uses {len(members)} workers")
        await self._scale(pods)

    async def _finish_write(self) -> None:
        """A predecessor's, or our own that the cluster refused: it must not be taken for a person's request."""
        run = self._run
        if run.state.scaling_from < 0:
            return
        if run.cluster.spec_replicas == run.state.scaling_from:
            await self._scale(run.state.replicas)
        else:
            await run.commit(scaling_from=-1)

    async def _scale(self, pods: int) -> None:
        if pods > self._run.state.replicas:
            self._grown_at = self._run.clock()
        await self._run.scale(pods)
        log.info("scaled pods=%s", pods)

    def _wanted_pods(self) -> int:
        return -(-self._choosing.wanted_workers() // self._run.job.placement.workers_per_pod)
