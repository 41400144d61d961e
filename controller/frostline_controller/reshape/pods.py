"""The number of pods that the run holds: as a user requests, and with objective "cost" no more than the plan uses
(docs/protocols.md 10).

The pods of `placement.spare_workers` always come on top; no plan names them until a worker is lost. Scale requests and the
annotation `frostline.io/requested-workers` are the same request: an upper limit on the workers, 0 to suspend. /scale counts pods,
spare ones included; the annotation counts workers without the spare ones.
"""

from typing import NamedTuple

from frostline_contract.annotations import REQUESTED_WORKERS, REQUESTED_WORKERS_MAX
from frostline_contract.run_status import RunStatus
from frostline_controller.cluster.backend import Conflict
from frostline_controller.planner.choice import PlanChoice
from frostline_controller.reshape.triggers import ReshapeTriggers
from frostline_controller.reshape.two_phase import Reshaping
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.pods import Pods
from frostline_controller.run.store import RunStore

SCALE_REQUEST, ANNOTATION = "a scale request", "annotation"


class SizeRequest(NamedTuple):
    """A user's request for a number of workers.

    Attributes:
        kind: "suspend", "resume" or "resize".
        by: the source of the request, in words.
        workers: for "resume" and "resize", the most workers; -1: no limit.
    """

    kind: str
    by: str
    workers: int = 0


class PodCount:
    """Writes spec.replicas, once for each plan or request that changes it. It acts last in a round, on the round's results.

    Args:
        facts, store, outbox, pods: the run's.
        choosing: says how many workers the planner wants.
        adapting: takes the request for a placement after the number of pods has changed.
        reshaping: says whether a plan is prepared; no pod is handed back meanwhile.
    """

    def __init__(
        self, facts: RunFacts, store: RunStore, outbox: Outbox, pods: Pods, *,
        choosing: PlanChoice, adapting: ReshapeTriggers, reshaping: Reshaping,
    ) -> None:  # fmt: skip
        self._facts, self._store, self._outbox, self._pods = facts, store, outbox, pods
        self._choosing, self._adapting, self._reshaping = choosing, adapting, reshaping
        self._grown_at = facts.clock()
        self._outdated = False
        self._taken = -1  # spec.replicas as the scale request has it that this round has taken; -1: it has taken none

    async def start_pods(self) -> None:
        """Request the pods that the run wants, where no controller has yet."""
        self._outdated = True  # the write before may have changed the annotations
        await self._finish_write()
        if self._facts.state.replicas < 0 and not self._facts.ended:
            await self._scale(self._wanted_pods(), self._facts.cluster.spec_replicas)

    async def request_workers(self, workers: int, by: str) -> None:
        """Limit the number of workers from now on (-1: the job's number), with one scale and one event as the answer. A number
        that a user has written meanwhile stays, as the next request."""
        facts = self._facts
        await self._store.commit(requested_workers=workers)
        pods = self._wanted_pods()
        if not pods == facts.state.replicas == facts.cluster.spec_replicas:  # an earlier write may have been finished by now
            await self._scale(pods)
        asked = _in_words(workers)
        self._adapting.ask(f"{asked} by {by}")
        await self._outbox.event("command", f"{by}: {asked}, answered by {self._choosing.wanted_workers()}")

    async def take_requests(self) -> SizeRequest | None:
        """Return the request that a user wrote to /scale or to the annotation, in each round until it is durable; else None."""
        facts, outbox = self._facts, self._outbox
        self._taken = -1
        if facts.state.replicas < 0:
            return None
        await self._finish_write()
        if self._outdated:
            await self._pods.reread()
            self._outdated = False
        if facts.cluster.spec_replicas != facts.state.replicas:
            section, pods = facts.job.placement, facts.cluster.spec_replicas
            workers = pods * section.workers_per_pod - section.spare_workers
            self._taken = pods
            return await self._take_limit(min(max(min(1, pods), workers), REQUESTED_WORKERS_MAX), SCALE_REQUEST)
        text = facts.cluster.annotations.get(REQUESTED_WORKERS)
        known = str(facts.state.requested_workers) if facts.state.requested_workers >= 0 else None
        if text == known:
            return self._not_suspended_yet()
        workers = -1 if text is None else number_in(text)
        if workers is not None:
            return await self._take_limit(workers, ANNOTATION)
        try:
            await self._pods.annotate({REQUESTED_WORKERS: known}, {REQUESTED_WORKERS: text})
        except Conflict:
            return None  # the annotation was changed meanwhile: it is read again in the next round
        await self._pods.reread()
        wanted = f"it must be a number of workers, at most {REQUESTED_WORKERS_MAX}; 0 suspends"
        await outbox.event("command", f"refused: {REQUESTED_WORKERS} is {text[:40]!r}; {wanted}")
        return None

    async def _take_limit(self, workers: int, by: str) -> SizeRequest | None:
        """Take a user's limit on the number of workers, and return the request to be answered; None: there is none.

        Args:
            workers: the most workers; 0 suspends the run, -1 lifts the limit.
            by: the source of the limit, in words.
        """
        facts, store, outbox = self._facts, self._store, self._outbox
        before = facts.state.requested_workers
        if facts.ended and facts.state.state != RunStatus.SUSPENDED:
            if by == SCALE_REQUEST:
                if await self._scale(0):
                    await outbox.event("command", f"refused: {by} for {workers} workers, the run is {facts.state.state}")
                return None
            await store.commit(requested_workers=workers)
            self._outdated = True
            await self._report_kept(workers, by)
            return None
        if facts.ended and workers != 0 and (by == SCALE_REQUEST or before == 0):
            return SizeRequest("resume", by, workers)
        stops = facts.state.state == RunStatus.DRAINING and not facts.state.paused
        if workers == 0 or facts.ended or stops:
            await store.commit(
                requested_workers=workers, **({"replicas": facts.cluster.spec_replicas} if by == SCALE_REQUEST else {})
            )
            self._outdated = True
            if (request := self._not_suspended_yet()) is None:
                await self._report_kept(workers, by)
            return request
        return SizeRequest("resize", by, workers)

    async def _report_kept(self, workers: int, by: str) -> None:
        """Answer a limit that changes nothing now by an event: the run has stopped, or stops already."""
        when = "from the next resume on" if workers != 0 else "nothing to do"
        await self._outbox.event("command", f"{by}: {_in_words(workers)}, {when}: the run is {self._facts.state.state}")

    def _not_suspended_yet(self) -> SizeRequest | None:
        """Return the request to suspend where its limit is durable and the run has not begun to stop, perhaps since the
        controller that read it has died."""
        state = self._facts.state
        if state.requested_workers != 0 or self._facts.ended or (state.state == RunStatus.DRAINING and not state.paused):
            return None
        return SizeRequest("suspend", SCALE_REQUEST if self._facts.cluster.spec_replicas == 0 else ANNOTATION)

    async def advance(self) -> None:
        """Follow the job's numbers of workers; with objective "cost" hand back pods that the plan does not use, and take them
        again when the planner wants more workers."""
        facts = self._facts
        if facts.current is None or facts.state.replicas < 1 or facts.ended or facts.state.state == RunStatus.DRAINING:
            return
        if facts.job.placement.objective != "cost":
            await self._follow_job()
            return
        if self._reshaping.busy or self._adapting.wish:
            return
        wanted, held = self._choosing.wanted_by_plan, facts.state.replicas
        least = self._pods_for(wanted or len(facts.current.placement.workers))
        if least > held:
            why = f"the planner wants {wanted} workers" if wanted else "a plan's workers and the spare ones need them"
            await self._scale_and_announce(least, "join", f"{least - held} pods taken again: {why}")
        elif not wanted:
            await self._hand_back()

    async def _follow_job(self) -> None:
        """Scale to the job's `workers` and `spare_workers` where they have changed; leaving workers hand over their state."""
        facts, wanted, held = self._facts, self._wanted_pods(), self._facts.state.replicas
        if wanted == held:
            return
        section = facts.job.placement
        spare = f" and {section.spare_workers} spare" if section.spare_workers else ""
        reason = f"{wanted} pods, not {held}, for {self._choosing.wanted_workers()} workers{spare}"
        await self._scale_and_announce(wanted, "join" if wanted > held else "leave", reason)
        self._adapting.ask(reason)

    async def _hand_back(self) -> None:
        """Hand back the pods with the highest ordinals, down to the highest that a member or a spare needs.

        Nothing is handed back while pods are still starting.
        """
        facts = self._facts
        assert facts.current is not None
        per_pod, members = facts.job.placement.workers_per_pod, facts.current.placement.workers
        held = facts.state.replicas
        there = [worker for worker in facts.members.available() if worker.ordinal < held]
        starting = len(there) < held * per_pod and facts.clock() - self._grown_at < facts.job.controller.start_timeout_seconds
        settled = [worker for worker in there if worker.worker_id in members and worker.generation == facts.current.generation]
        if starting or len(settled) < len(members):
            return
        needed = max(len(members), facts.job.placement.min_workers)
        pods = max(max(worker.ordinal for worker in settled) + 1, self._pods_for(needed))
        if pods >= held:
            return
        text = f"{held - pods} of {held} pods handed back: the plan uses {len(members)} workers"
        await self._scale_and_announce(pods, "leave", text)

    async def _scale_and_announce(self, pods: int, kind: str, text: str) -> None:
        """Scale, and write an event once the number is durable; `_finish_write` finishes a write that the cluster refused. No
        event where a user's number stands in the way."""
        stands = True  # also where the cluster refuses the write
        try:
            stands = await self._scale(pods)
        finally:
            if stands and self._facts.state.replicas == pods:
                await self._outbox.event(kind, text)

    async def _finish_write(self) -> None:
        """Finish an unfinished write of a predecessor or of this controller, so that it is not mistaken for a user's request."""
        facts, store, pods = self._facts, self._store, self._pods
        if facts.state.scaling_from < 0:
            return
        if facts.cluster.spec_replicas == facts.state.scaling_from:
            if not await self._scale(facts.state.replicas, facts.state.scaling_from):
                await pods.reread()  # a user's number stands: it is this round's request
        else:
            await store.commit(scaling_from=-1)

    async def _scale(self, pods: int, known: int = -1) -> bool:
        """Write spec.replicas; False where a user's newer number stands, which is a request of the next round.

        Args:
            pods: the new number.
            known: the number that it replaces; -1: the controller's own, or that of the request that this round has taken.
        """
        state = self._facts.state
        if pods > state.replicas:
            self._grown_at = self._facts.clock()
        if known < 0:
            known = self._taken if self._taken >= 0 else state.replicas
        written = await self._pods.scale(pods, known)
        if written:
            self._taken = -1
        return written

    def _wanted_pods(self) -> int:
        return self._pods_for(self._choosing.wanted_workers())

    def _pods_for(self, workers: int) -> int:
        """Return the number of pods for so many workers and the spare ones."""
        section = self._facts.job.placement
        return -(-(workers + section.spare_workers) // section.workers_per_pod)


def _in_words(workers: int) -> str:
    return f"{workers} workers" if workers >= 0 else "no limit on the workers"


def number_in(text: str) -> int | None:
    """Return the number of an annotation, from 0 to REQUESTED_WORKERS_MAX; None where it is no such number."""
    digits = text.strip()
    number = int(digits) if digits.isdecimal() and len(digits) <= len(str(REQUESTED_WORKERS_MAX)) else -1
    return number if 0 <= number <= REQUESTED_WORKERS_MAX else None
