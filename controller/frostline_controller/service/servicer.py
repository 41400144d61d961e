"""The Control service: turns messages into facts. It decides nothing; the reconciler is woken and acts."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc

from frostline_contract.device import DeviceFacts
from frostline_contract.job import dump_job
from frostline_contract.phases import Phase
from frostline_contract.plan import GenerationId
from frostline_contract.statistics import IntervalStatistics, StepRecord
from frostline_controller.kept_profile import KeptProfile
from frostline_controller.membership import GONE, Worker
from frostline_controller.service.admission import Admission
from frostline_controller.service.announce import welcome
from frostline_controller.service.controller import Controller
from frostline_controller.service.records import ResultsDiffer
from frostline_controller.service.start_wait import is_left_over
from frostline_controller.service.status import status_of
from frostline_controller.service.streams import Announcement
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import control_pb2_grpc, plan_pb2
from frostline_rpc.convert import to_message, to_record
from frostline_rpc.errors import InvalidRequest, Refused, StaleGeneration

log = logging.getLogger(__name__)

HEARTBEATS_SECONDS = 60.0
"""How long a stream of heartbeats lasts: its caller's token is looked at when it opens, and may run out."""


class ControlServicer(control_pb2_grpc.ControlServicer):
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._run = controller.run
        self._admission = Admission(controller)

    async def DescribeJob(self, request: pb.DescribeJobRequest, context: Any) -> pb.DescribeJobResponse:
        profiles = [to_message(profile, plan_pb2.WorkerProfile) for profile in self._controller.handed_out.profiles()]
        return pb.DescribeJobResponse(job=dump_job(self._run.job), profiles=profiles)

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterResponse:
        run = self._run
        if not request.worker_id or "/" not in request.worker_id:
            raise InvalidRequest(f"worker_id is {request.worker_id!r}; it must be '<pod uid>/<process nonce>'")
        await self._admission.check(request)
        now = run.clock()
        worker = Worker(
            worker_id=request.worker_id,
            pod_name=request.pod_name,
            failure_domain=request.failure_domain,
            process_id=request.process_id,
            store_host=request.store_host,
            store_port=request.store_port,
            profile=KeptProfile.of_message(request.profile),
            registered_at=now,
            last_heard=now,
            unwatched_since=now,
            generation=_generation(request.generation) if request.HasField("generation") else None,
            device=to_record(request.device, DeviceFacts) if request.HasField("device") else None,
        )
        named = {name for plan in (run.current, run.state.prepared) if plan is not None for name in plan.participants}
        for older in run.members.displaced_by(worker, run.job.placement.workers_per_pod, named):
            run.members.end(older, "")  # the agent starts another only when the first has ended
            self._controller.note_departure(older, f"its process was replaced by {worker.process_id}", "ended")
        if run.members.add(worker):
            await self._controller.note_joined(worker)
        return pb.RegisterResponse(
            incarnation=run.state.incarnation,
            heartbeat_seconds=run.job.controller.heartbeat_seconds,
            checkpoint_root=str(self._controller.checkpoint_root),
            cache_address=run.cache_address(),
        )

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        return self._take_heartbeat(request)

    async def Heartbeats(
        self, requests: AsyncIterator[pb.HeartbeatsRequest], context: Any
    ) -> AsyncIterator[pb.HeartbeatsResponse]:
        ends_at = self._run.clock() + HEARTBEATS_SECONDS
        async for request in requests:
            answer = self._take_heartbeat(request.heartbeat)
            if not (request.quiet and answer.known):
                yield pb.HeartbeatsResponse(heartbeat=answer)
            if self._run.clock() > ends_at:
                return

    def _take_heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Facts only, and no record is made of what most heartbeats do not change: a thousand a second come here."""
        run = self._run
        worker = run.members.get(request.worker_id)
        if worker is None or worker.presence == GONE:
            return pb.HeartbeatResponse(known=False)
        worker.last_heard = run.clock()
        if request.HasField("generation") and not _is(request.generation, worker.generation):
            worker.generation = self._same_generation(request.generation)
            run.wake.set()
        if request.step != worker.step:
            worker.step = request.step
            if run.current is not None and request.worker_id == run.current.placement.workers[0]:
                run.wake.set()
        worker.phase, worker.phase_seconds, worker.waiting_seconds = request.phase, request.phase_seconds, request.waiting_seconds
        worker.phase_told_at = run.clock()
        worker.phase_p99, worker.busy_seconds = request.phase_p99_seconds, request.busy_seconds
        worker.resident_bytes = request.resident_bytes
        worker.uncovered_units = tuple(request.uncovered_units)
        if request.phase == Phase.RECOVERY:
            run.wake.set()
        if request.HasField("cache"):
            worker.cache = request.cache
        if request.HasField("link"):
            worker.link = request.link
        if request.step_parts:
            worker.step_parts = request.step_parts
        lineage = run.records.lineage
        return pb.HeartbeatResponse(
            known=True,
            durable_step=run.records.durable_step(lineage, run.state.starts_at(lineage)),
            durable_lineage=lineage,
            durable_interval=self._durable_interval(),
        )

    async def ReportStatistics(self, request: pb.ReportStatisticsRequest, context: Any) -> pb.ReportStatisticsResponse:
        self._known(request.worker_id)
        self._check_generation(request.generation, "statistics")
        statistics = [to_record(one, IntervalStatistics) for one in request.statistics]
        units = self._run.identity.num_units if self._run.identity else 0
        for one in statistics:
            if len(one.unit_gradient_norms) != units:
                raise InvalidRequest(
                    f"statistics of interval {one.number} have {len(one.unit_gradient_norms)} norms for {units} units"
                )
        await self._run.statistics.take(statistics)
        self._run.wake.set()
        self._run.hurry.set()
        return pb.ReportStatisticsResponse(durable_interval=self._durable_interval())

    async def ReportRecords(self, request: pb.ReportRecordsRequest, context: Any) -> pb.ReportRecordsResponse:
        run = self._run
        self._known(request.worker_id)
        self._check_generation(request.generation, "records")
        if request.HasField("outcome"):
            self._check_outcome(request.worker_id, _generation(request.generation))
        records = [to_record(one, StepRecord) for one in request.records]
        for event in request.events:
            run.events.hear(event.kind, event.step, event.lineage, event.reason)
        try:
            await run.records.take(records, run.state.lineages, run.job.training.numerics == "exact")
        except ResultsDiffer as error:
            log.error("results differ error=%s", error)
            self._controller.ending.fail(str(error))
        for event in request.events:
            await self._controller.take_worker_event(event)
        if request.HasField("outcome"):
            await self._controller.ending.take_outcome(request.outcome)
        run.wake.set()
        lineage = run.records.lineage
        return pb.ReportRecordsResponse(
            durable_step=run.records.durable_step(lineage, run.state.starts_at(lineage)), durable_lineage=lineage
        )

    async def WatchPlan(self, request: pb.WatchPlanRequest, context: Any) -> AsyncIterator[Announcement]:
        run, controller = self._run, self._controller
        worker = self._known(request.worker_id)
        queue = run.streams.open(request.worker_id)
        worker.watching = True
        try:
            preparation = controller.reshaping.preparation
            member = run.current is not None and request.worker_id in run.current.placement.global_ranks
            draining = controller.ending.draining if member else ""
            told = preparation is not None and preparation.told and not preparation.withdrawn
            ended = controller.ending.end_reason if run.ended else ""
            if is_left_over(run, worker):
                ended = run.state.message or "the run goes on from its checkpoint in new processes"
                run.members.give_notice(worker)
            for message in welcome(run, worker, told, draining, ended, controller.entering.fences()):
                yield message
            while (message := await queue.get()) is not None:
                yield message
        finally:
            if run.streams.close(request.worker_id, queue):
                current = run.members.get(request.worker_id)
                if current is not None:
                    current.watching, current.unwatched_since = False, run.clock()
                run.wake.set()

    async def Ready(self, request: pb.ReadyRequest, context: Any) -> pb.ReadyResponse:
        run = self._run
        self._known(request.worker_id)
        generation = _generation(request.generation)
        prepared, current = run.state.prepared, run.current
        if prepared is not None and generation == prepared.generation:
            self._controller.reshaping.note_ready(request.worker_id, request)
        elif current is not None and generation == current.generation:
            if request.entered:
                run.entered[request.worker_id] = (request.step, request.seconds)
        else:
            raise StaleGeneration(
                f"generation {generation} is neither the prepared {prepared.generation if prepared else 'none'} "
                f"nor the running {current.generation if current else 'none'}"
            )
        run.wake.set()
        return pb.ReadyResponse()

    async def ReportRecovery(self, request: pb.ReportRecoveryRequest, context: Any) -> pb.ReportRecoveryResponse:
        worker = self._known(request.worker_id)
        worker.last_heard = self._run.clock()
        if request.incarnation > self._run.state.incarnation:
            raise StaleGeneration(
                f"incarnation {request.incarnation} is newer than this controller's {self._run.state.incarnation}"
            )
        if request.HasField("memory_shortage"):
            self._controller.devices.note_shortage(request)
        self._controller.entering.note_report(request.worker_id, request)
        self._run.wake.set()
        return pb.ReportRecoveryResponse()

    async def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveResponse:
        controller = self._controller
        if request.error:
            log.error("worker failed worker=%s error=%r", request.worker_id, request.error)
        mistake = request.user_mistake  # also of a worker that could not even register
        if request.ended:
            controller.devices.note_end(request)
            self._run.members.end(request.worker_id, "" if mistake else request.error)
        if mistake and controller.start_failures.has_run:
            controller.start_failures.note(request.worker_id, request.error or request.reason)
        elif mistake:
            controller.ending.fail(request.error or request.reason, user_mistake=True)
        controller.note_departure(request.worker_id, request.reason or "it ended", "ended" if request.ended else "leaving")
        return pb.LeaveResponse()

    async def Command(self, request: pb.CommandRequest, context: Any) -> pb.CommandResponse:
        return pb.CommandResponse(answer=await self._controller.commands.accept(request))

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusResponse:
        return status_of(self._run)

    def _known(self, worker_id: str) -> Worker:
        worker = self._run.members.get(worker_id)
        if worker is None or worker.presence == GONE:
            raise Refused(f"worker {worker_id!r} is not registered here; register first")
        return worker

    def _check_generation(self, message: Any, what: str) -> None:
        """Reports are taken from the running generation, the prepared one, and those that led to it: what a restore undid of
        them is dropped where it is written. Raises StaleGeneration."""
        run = self._run
        generation = _generation(message)
        current, prepared = run.current, run.state.prepared
        known = {plan.generation for plan in (current, prepared) if plan is not None} | set(run.state.continued)
        if generation not in known:
            raise StaleGeneration(
                f"{what} of generation {generation}: the running one is {current.generation if current else 'none'}; "
                "drop what belongs to a lineage that ended and follow the newest plan"
            )

    def _same_generation(self, message: Any) -> GenerationId:
        """The running plan's own object where it is that one: a thousand workers' are then compared by identity."""
        current = self._run.current
        return current.generation if current is not None and _is(message, current.generation) else _generation(message)

    def _check_outcome(self, worker_id: str, generation: GenerationId) -> None:
        """The end of a run is told by rank 0 of the generation that runs, or that all are entering. Raises Refused."""
        plans = [plan for plan in (self._run.current, self._run.state.prepared) if plan is not None]
        if not any(plan.generation == generation and plan.placement.workers[0] == worker_id for plan in plans):
            raise Refused(f"worker {worker_id!r} told the end of generation {generation}, which its rank 0 tells while it runs")

    def _durable_interval(self) -> int:
        run = self._run
        lineage = run.state.lineage
        first = run.calendar.complete_at(run.state.starts_at(lineage)) if run.calendar else 0
        return run.statistics.durable_interval(lineage, first)


def _is(message: Any, generation: GenerationId | None) -> bool:
    """Whether the message names this generation; asked of every heartbeat."""
    return generation is not None and message.counter == generation.counter and message.incarnation == generation.incarnation


def _generation(message: Any) -> GenerationId:
    return GenerationId(incarnation=message.incarnation, counter=message.counter)


def add_control(server: grpc.aio.Server, controller: Controller) -> None:
    control_pb2_grpc.add_ControlServicer_to_server(ControlServicer(controller), server)
