"""Requests of people: commands by RPC or by annotation; suspend and resume also by a scale request."""

import asyncio
import logging
from dataclasses import dataclass

from pydantic import ValidationError

from frostline_contract.annotations import COMMAND, REQUESTED_WORKERS_MAX
from frostline_contract.job.cluster import ScheduledReshape
from frostline_contract.job.load import list_mistakes
from frostline_contract.mesh import Mesh, in_words, with_degrees
from frostline_contract.run_status import RESUMABLE, RunStatus
from frostline_contract.shape import ParallelShape
from frostline_controller.cluster.backend import ClusterState
from frostline_controller.decisions.by_command import check_a_decision_is_left, check_freeze_point
from frostline_controller.decisions.surviving import remembered_decisions
from frostline_controller.planner.asked import check_asked
from frostline_controller.recovery.budget import RetryBudget
from frostline_controller.reshape.pods import PodCount, SizeRequest, number_in
from frostline_controller.reshape.preparation import open_window
from frostline_controller.reshape.triggers import ReshapeTriggers
from frostline_controller.run.ending import Ending
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.pinned import PinnedShape
from frostline_controller.run.store import RunStore
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.errors import InvalidRequest, Refused

log = logging.getLogger(__name__)

KINDS = ("freeze", "unfreeze", "suspend", "resume", "resize", "checkpoint", "cancel", "reshape")
NUMBERED = {"freeze": "freeze_point", "resize": "workers"}
"""The commands whose annotation has a number, with the request's field for it."""

WAYS = ("schedule", "virtual_stages", "slices", "shard", "tensor_rows")
"""What a reshape may ask for beside degrees, by the names of the job's `reshapes`."""


@dataclass(frozen=True)
class Asked:
    """A command in the queue.

    Attributes:
        by: the sender.
        annotation: the text of its annotation; empty for a command by call.
        done: set when the command has been carried out, for a caller that waits.
    """

    request: pb.CommandRequest
    by: str = "command"
    annotation: str = ""
    done: asyncio.Future[None] | None = None


class Commands:
    """Each command is checked when it arrives, carried out by the reconciler, and answered by an event.

    Args:
        facts, store, outbox: the run's.
        sizing: carries out commands on the number of workers.
        adapting: takes requests for another shape.
        ending: ends the run, or lets it wait for workers again.
    """

    def __init__(
        self, facts: RunFacts, store: RunStore, outbox: Outbox, sizing: PodCount, adapting: ReshapeTriggers, ending: Ending
    ) -> None:
        self._facts, self._store, self._outbox = facts, store, outbox
        self._sizing, self._adapting, self._ending = sizing, adapting, ending
        self._queue: list[Asked] = []
        self._read_from: ClusterState | None = None

    async def accept(self, request: pb.CommandRequest) -> str:
        """Check and queue a command, and wait until it is durable, so that a successor of this controller has it too.

        Returns the expected effect; raises InvalidRequest or Refused. If the caller goes away, the command stays in the queue.
        Another caller with the same request meanwhile waits for the same command.
        """
        answer = self._answer(request)
        done = next((asked.done for asked in self._queue if asked.done is not None and asked.request == request), None)
        if done is None:
            done = asyncio.get_running_loop().create_future()
            self._queue.append(Asked(request, done=done))
        self._facts.wake.set()
        await asyncio.shield(done)
        return answer

    def _answer(self, request: pb.CommandRequest) -> str:
        facts = self._facts
        units = facts.identity.num_units if facts.identity else 0
        kind = request.kind
        if kind == "resume":
            if facts.state.state not in RESUMABLE:
                raise Refused(f"resume: the run is {facts.state.state}; only a suspended, failed or cancelled run resumes")
            return "resuming from the newest checkpoint"
        _check_known(kind)
        if facts.ended:
            raise Refused(f"{kind}: the run is {facts.state.state}; resume it first")
        return self._check(request, units)

    def _check(self, request: pb.CommandRequest, units: int) -> str:
        facts, kind = self._facts, request.kind
        if kind in ("freeze", "reshape", "checkpoint", "unfreeze") and facts.current is None:
            raise Refused(f"{kind}: the run has not started yet")
        if kind in ("freeze", "unfreeze"):
            return self._check_freezing(request, units)
        if kind == "reshape":
            return self._check_reshape(request, units - facts.freeze_point())
        if kind == "resize":
            return self._check_resize(request.workers)
        return {"suspend": "draining to a checkpoint", "cancel": "cancelling", "checkpoint": "a checkpoint after this step"}[kind]

    def _check_resize(self, workers: int) -> str:
        section = self._facts.job.placement
        if workers < 1:
            raise InvalidRequest(f"workers is {workers}; it must be at least 1 (suspend stops the run)")
        if workers > REQUESTED_WORKERS_MAX:
            raise InvalidRequest(f"workers is {workers}; it must be at most {REQUESTED_WORKERS_MAX}")
        if workers < section.min_workers:
            raise InvalidRequest(
                f"workers is {workers}, and the run never has fewer than placement.min_workers, which is {section.min_workers}; "
                "lower that live field first (helm upgrade, or frostline resume --set), or suspend the run"
            )
        of_the_job = f" (placement.workers is {section.workers})" if workers > section.workers else ""
        return f"at most {min(workers, section.workers)} workers{of_the_job}"

    def _check_freezing(self, request: pb.CommandRequest, units: int) -> str:
        facts, lowest = self._facts, self._facts.job.lowest_freeze_point(units)
        assert facts.calendar is not None
        try:
            check_a_decision_is_left(facts.job, facts.surviving(), facts.calendar)
        except ValueError as error:
            raise Refused(f"{request.kind}: {error}") from None
        if request.kind == "unfreeze":
            what = f"units from {lowest} on, the first with adapters, learn" if lowest else "everything learns"
            return f"{what} again from the next decision on"
        decisions = remembered_decisions(facts.state.decisions, facts.state.lineages, facts.calendar)
        try:
            check_freeze_point(request.freeze_point, facts.job, units, decisions, facts.freeze_point())
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
        return f"freeze point {request.freeze_point} with the next decision"

    def _check_reshape(self, request: pb.CommandRequest, trainable: int) -> str:
        asked, there = _reshape_asked(request), len(self._facts.members.available())
        needed, limit = Mesh.of(asked.degrees).size, self._facts.limit_workers()
        if needed > limit:
            raise InvalidRequest(
                f"shape {in_words(asked.degrees)} needs {needed} workers, and the run may have {limit}; raise placement.workers, "
                "or take back a resize to fewer"
            )
        if needed > there:
            raise InvalidRequest(f"shape {in_words(asked.degrees)} needs {needed} workers, {there} are there")
        try:
            check_asked(self._facts.job, asked, trainable)
        except ValueError as error:
            raise InvalidRequest(f"reshape: {error}") from None
        return f"reshape to {_in_words(asked)} when it is prepared"

    async def advance(self) -> None:
        """Carry out the queued commands. A command leaves the queue when it is done: where a write fails, it is tried again."""
        await self._take_annotation()
        if (size := await self._sizing.take_requests()) is not None:
            self._queue_size(size)
        while self._queue:
            asked = self._queue[0]
            with self._store.removing(COMMAND, asked.annotation):
                await self._carry_out(asked.request, asked.by)
                await self._store.remove_annotation()
            del self._queue[0]
            if asked.done is not None:
                asked.done.set_result(None)
            if asked.annotation:
                self._read_from = self._facts.cluster

    def _queue_size(self, size: SizeRequest) -> None:
        """Queue a request for a number of workers, in the place of one from the same source that has not been carried out yet."""
        asked = Asked(pb.CommandRequest(kind=size.kind, workers=size.workers), size.by)
        for place, older in enumerate(self._queue):
            if older.by == size.by:
                self._queue[place] = asked
                return
        self._queue.append(asked)

    async def _carry_out(self, request: pb.CommandRequest, by: str) -> None:
        facts, store, outbox, kind = self._facts, self._store, self._outbox, request.kind
        log.info("command kind=%s step=%s", kind, facts.step)
        reason = f"{kind} by {by}"
        if kind in ("freeze", "unfreeze"):
            lowest = facts.job.lowest_freeze_point(facts.identity.num_units) if facts.identity else 0
            await store.commit(forced_freeze_point=request.freeze_point if kind == "freeze" else lowest)
            reason += f": freeze point {facts.state.forced_freeze_point} with the next decision"
        elif kind == "reshape":
            asked = _reshape_asked(request)
            reason += f": {_in_words(asked)}"
            await self._adapting.pin(PinnedShape.of(asked, open_window(facts).freeze_point, reason))
        elif kind == "checkpoint":
            outbox.streams.send_all(pb.WatchPlanResponse(checkpoint=pb.CheckpointNotice(reason=reason)))
        elif kind == "resize":
            await self._sizing.request_workers(request.workers, reason if by == "command" else by)
            return
        elif kind == "suspend":
            await self._ending.drain(reason)
        elif kind == "cancel":
            await self._ending.drain(reason, cancelled=True)
        elif kind == "resume":
            await self.resume(reason, request.workers)
        await outbox.event("command", reason)

    async def resume(self, reason: str, limit: int = 0) -> None:
        """Let a stopped run wait for workers again; its first plan starts from the newest checkpoint.

        Args:
            reason: in words, for the log.
            limit: the most workers; -1: no limit; 0: as before.
        """
        facts, store = self._facts, self._store
        await self._ending.reopen()
        kept = not limit
        limit = limit or facts.state.requested_workers
        store.amendments.retries = RetryBudget()
        await store.commit(
            state=RunStatus.WAITING, message="", prepared=None, paused=False, cancelled=False, replicas=-1,
            requested_workers=limit if limit > 0 else -1,
        )  # fmt: skip
        await self._sizing.start_pods()
        most, wanted = facts.limit_workers(), facts.job.placement.workers
        if kept and most < wanted:
            text = f"at most {most} workers, not placement.workers {wanted}: an earlier request still holds"
            await self._outbox.event("command", f"{text}; `resize`, or `frostline resume --workers N`, replaces it")
        log.info("resuming reason=%r", reason)

    async def _take_annotation(self) -> None:
        """Queue the command of an annotation (`kubectl annotate`).

        The patch that makes the command's effect durable also removes the annotation, so that the command is carried out once,
        even if a controller dies meanwhile.
        """
        facts, store, outbox = self._facts, self._store, self._outbox
        text = facts.cluster.annotations.get(COMMAND)
        if not text or facts.cluster is self._read_from or any(asked.annotation for asked in self._queue):
            return
        try:
            request = _of_annotation(text)
            self._answer(request)
        except (InvalidRequest, Refused) as error:
            with store.removing(COMMAND, text):
                await store.remove_annotation()
            self._read_from = facts.cluster
            await outbox.event("command", f"refused: {error}")
            return
        self._queue.append(Asked(request, annotation=text))


def _of_annotation(text: str) -> pb.CommandRequest:
    """Return the command of an annotation's text. Raises InvalidRequest where a number is missing, wrong, or of no use."""
    kind, *rest = text.split() or [""]
    _check_known(kind)
    if kind not in NUMBERED:
        if rest:
            raise InvalidRequest(f"{text[:40]!r}: {kind} takes no number here; write {kind!r}")
        return pb.CommandRequest(kind=kind)
    number = number_in(rest[0]) if len(rest) == 1 else None
    if number is None:
        raise InvalidRequest(f"{text[:40]!r}: {kind} takes one number, at most {REQUESTED_WORKERS_MAX}; write '{kind} 3'")
    return pb.CommandRequest(kind=kind, **{NUMBERED[kind]: number})


def _check_known(kind: str) -> None:
    if kind not in KINDS:
        raise InvalidRequest(f"kind is {kind[:40]!r}; known are {', '.join(KINDS)}")


def _reshape_asked(request: pb.CommandRequest) -> ScheduledReshape:
    """Return what a reshape asks for, its shape from the degrees or from the fields of older callers. Raises InvalidRequest."""
    older = {"pp_degree": request.pp_degree, "dp_degree": request.dp_degree}
    degrees = with_degrees({"degrees": dict(request.degrees), **older})["degrees"]
    if not degrees:
        raise InvalidRequest("reshape: the request has no degrees; it must name pp and dp")
    given = {name: getattr(request, name) for name in WAYS if getattr(request, name)}
    try:
        shape = ParallelShape.of(degrees)
        tensor = {"tp_degree": shape.tp_columns, "tp_depth": shape.tp_depth}
        return ScheduledReshape(step=1, pp_degree=shape.pp_degree, dp_degree=shape.dp_degree, **tensor, **given)
    except ValidationError as error:
        raise InvalidRequest(f"reshape: {'; '.join(list_mistakes(error, ScheduledReshape))}") from None
    except ValueError as error:
        raise InvalidRequest(f"reshape: {error}") from None


def _in_words(asked: ScheduledReshape) -> str:
    """Return a shape in words, with the ways that differ from those of a shape of which only degrees are given."""
    ways = asked.model_dump(include=set(WAYS), exclude_defaults=True)
    named = (f"{name} {ways[name]}" for name in WAYS if name in ways)
    return ", ".join([in_words(asked.degrees), *named])
