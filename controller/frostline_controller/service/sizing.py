"""How many pods the run holds: what a person asked for, and with objective "cost" no more than the plan uses
(docs/protocols.md 10). Beside them always those of `placement.spare_workers`, which no plan names until a worker is lost.

Scale requests and the annotation `frostline.io/requested-workers` are one wish: an upper limit on the workers, 0 to suspend.
/scale counts pods, the spare ones among them; the annotation counts workers without the spare ones.
"""

import asyncio
import logging
from typing import NamedTuple

from frostline_contract.annotations import REQUESTED_WORKERS
from frostline_contract.run_status import RunStatus
from frostline_controller.cluster.backend import Conflict
from frostline_controller.service.adapting import Adapting
from frostline_controller.service.choosing import Choosing
from frostline_controller.service.reshaping import Reshaping
from frostline_controller.service.run import Run

log = logging.getLogger(__name__)

SCALE_REQUEST, ANNOTATION = "a scale request", "annotation"


class SizeRequest(NamedTuple):
    """What a person asked for. kind: suspend, resume, or resize to at most `workers` (-1: no limit)."""

    kind: str
    by: str
    workers: int = 0


class Sizing:
    """Writes spec.replicas: once for a plan or a request that changes it. The last to act in a round, on what is settled."""

    def __init__(self, run: Run, choosing: Choosing, adapting: Adapting, reshaping: Reshaping) -> None:
        self._run, self._choosing, self._adapting, self._reshaping = run, choosing, adapting, reshaping
        self._grown_at = run.clock()
        self._outdated = False

    async def start_pods(self) -> None:
        """Ask for the pods that the run wants, where nobody has yet."""
        await self._finish_write()
        if self._run.state.replicas < 0 and not self._run.ended:
            await self._scale(self._wanted_pods())

    async def request_workers(self, workers: int, by: str) -> None:
        """At most so many workers from now on (-1: the job's number), answered by one scale and one event."""
        run = self._run
        await run.commit(requested_workers=workers)
        pods = self._wanted_pods()
        if not pods == run.state.replicas == run.cluster.spec_replicas:  # a write that was refused may be done by now
            await self._scale(pods)
        asked = f"{workers} workers" if workers >= 0 else "no limit on the workers"
        self._adapting.ask(f"{asked} by {by}")
        await run.event("command", f"{by}: {asked}, answered by {self._choosing.wanted_workers()}")

    async def take_requests(self) -> SizeRequest | None:
        """What a person wrote to /scale or to the annotation, again until it is durable."""
        run = self._run
        if run.state.replicas < 0:
            return None
        await self._finish_write()
        if self._outdated:
            await run.reread()
            self._outdated = False
        if run.cluster.spec_replicas != run.state.replicas:
            section, pods = run.job.placement, run.cluster.spec_replicas
            workers = pods * section.workers_per_pod - section.spare_workers
            return await self._take_limit(max(min(1, pods), workers), SCALE_REQUEST)
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

    async def _take_limit(self, workers: int, by: str) -> SizeRequest | None:
        """workers: -1 lifts the limit."""
        run = self._run
        before = run.state.requested_workers
        if run.ended and run.state.state != RunStatus.SUSPENDED:
            if by == SCALE_REQUEST:
                await self._scale(0)
                await run.event("command", f"refused: {by} for {workers} workers, the run is {run.state.state}")
                return None
            await run.commit(requested_workers=workers)
            self._outdated = True
            return None
        if workers == 0 or run.ended:
            await run.commit(
                requested_workers=workers, **({"replicas": run.cluster.spec_replicas} if by == SCALE_REQUEST else {})
            )
            self._outdated = True
            if run.ended:
                return SizeRequest("resume", by) if workers != 0 and (by == SCALE_REQUEST or before == 0) else None
            return SizeRequest("suspend", by) if run.state.state != RunStatus.DRAINING or run.state.paused else None
        return SizeRequest("resize", by, workers)

    async def advance(self) -> None:
        """Follow the job where it asks for other numbers of workers; with objective "cost" hand back pods that the plan does not
        use, and take them again when the planner wants more."""
        run = self._run
        if run.current is None or run.state.replicas < 1 or run.ended or run.state.state == RunStatus.DRAINING:
            return
        if run.job.placement.objective != "cost":
            await self._follow_job()
            return
        if self._reshaping.busy or self._adapting.wish:
            return
        wanted, held = self._choosing.wanted_by_plan, run.state.replicas
        least = self._pods_for(wanted or len(run.current.placement.workers))
        if least > held:
            why = f"the planner wants {wanted} workers" if wanted else "a plan's workers and the spare ones need them"
            await self._scale_and_tell(least, "join", f"{least - held} pods taken again: {why}")
        elif not wanted:
            await self._hand_back()

    async def _follow_job(self) -> None:
        """The job changed `workers` or `spare_workers`: whoever must go is asked to, and gives its state away."""
        run, wanted, held = self._run, self._wanted_pods(), self._run.state.replicas
        if wanted == held:
            return
        section = run.job.placement
        spare = f" and {section.spare_workers} spare" if section.spare_workers else ""
        reason = f"{wanted} pods, not {held}, for {self._choosing.wanted_workers()} workers{spare}"
        await self._scale_and_tell(wanted, "join" if wanted > held else "leave", reason)
        self._adapting.ask(reason)

    async def _hand_back(self) -> None:
        """The highest ordinals go, down to the highest that a member or a spare needs; never while pods are still starting."""
        run = self._run
        assert run.current is not None
        per_pod, members = run.job.placement.workers_per_pod, run.current.placement.workers
        held = run.state.replicas
        there = [worker for worker in run.members.available() if worker.ordinal < held]
        starting = len(there) < held * per_pod and run.clock() - self._grown_at < run.job.controller.start_timeout_seconds
        settled = [worker for worker in there if worker.worker_id in members and worker.generation == run.current.generation]
        if starting or len(settled) < len(members):
            return
        needed = max(len(members), run.job.placement.min_workers)
        pods = max(max(worker.ordinal for worker in settled) + 1, self._pods_for(needed))
        if pods >= held:
            return
        text = f"{held - pods} of {held} pods handed back: the plan uses {len(members)} workers"
        await self._scale_and_tell(pods, "leave", text)

    async def _scale_and_tell(self, pods: int, kind: str, text: str) -> None:
        """An event once the number is durable: what the cluster has not taken yet is finished by `_finish_write`."""
        try:
            await self._scale(pods)
        finally:
            if self._run.state.replicas == pods:
                await self._run.event(kind, text)

    async def _finish_write(self) -> None:
        """A predecessor's, or our own that the cluster refused: it must not be taken for a person's request."""
        run = self._run
        if run.state.scaling_from < 0:
            return
        if run.cluster.spec_replicas == run.state.scaling_from:
            await self._scale(run.state.replicas)
            await run.reread()
        else:
            await run.commit(scaling_from=-1)

    async def _scale(self, pods: int) -> None:
        if pods > self._run.state.replicas:
            self._grown_at = self._run.clock()
        await self._run.scale(pods)
        log.info("scaled pods=%s", pods)

    def _wanted_pods(self) -> int:
        return self._pods_for(self._choosing.wanted_workers())

    def _pods_for(self, workers: int) -> int:
        """Of so many workers and the spare ones."""
        section = self._run.job.placement
        return -(-(workers + section.spare_workers) // section.workers_per_pod)
