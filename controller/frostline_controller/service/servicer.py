"""The Control service: turns messages into facts. It decides nothing; the reconciler is woken and acts."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc

from frostline_contract.job import dump_job, job_digest
from frostline_contract.plan import GenerationId
from frostline_contract.statistics import CacheProfile, IntervalStatistics, LinkProfile, StepRecord, WorkerProfile
from frostline_controller.membership import GONE, Worker
from frostline_controller.service.announce import welcome
from frostline_controller.service.controller import Controller
from frostline_controller.service.records import ResultsDiffer
from frostline_controller.service.status import status_of
from frostline_controller.state.durable import RunIdentity
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import control_pb2_grpc
from frostline_rpc.convert import to_record
from frostline_rpc.errors import InvalidRequest, Refused, StaleGeneration

log = logging.getLogger(__name__)


class ControlServicer(control_pb2_grpc.ControlServicer):
    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._run = controller.run
        self._job_digest = job_digest(controller.run.job)

    async def DescribeJob(self, request: pb.DescribeJobRequest, context: Any) -> pb.DescribeJobResponse:
        return pb.DescribeJobResponse(job=dump_job(self._run.job))

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterResponse:
        run = self._run
        if not request.worker_id or "/" not in request.worker_id:
            raise InvalidRequest(f"worker_id is {request.worker_id!r}; it must be '<pod uid>/<process nonce>'")
        await self._check_place(request.worker_id)
        self._check_identity(request)
        now = run.clock()
        worker = Worker(
            worker_id=request.worker_id,
            pod_name=request.pod_name,
            failure_domain=request.failure_domain,
            process_id=request.process_id,
            store_host=request.store_host,
            store_port=request.store_port,
            profile=to_record(request.profile, WorkerProfile),
            registered_at=now,
            last_heard=now,
            unwatched_since=now,
            generation=_generation(request.generation) if request.HasField("generation") else None,
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

    async def _check_place(self, worker_id: str) -> None:
        """A process that has ended does not come back, and one whose pod was taken away is not wanted. Raises Refused."""
        run = self._run
        if run.members.has_ended(worker_id):
            raise Refused(f"worker {worker_id!r} has ended; a new process registers under an id of its own")
        uid = worker_id.rpartition("/")[0]
        if run.cluster.pods and uid not in {pod.uid for pod in run.cluster.pods}:
            await run.reread()  # the pod may be milliseconds old
            if run.cluster.pods and uid not in {pod.uid for pod in run.cluster.pods}:
                raise Refused(f"pod {uid!r} is no longer part of the run: another has taken its place, or it was handed back")

    def _check_identity(self, request: pb.RegisterRequest) -> None:
        """A worker must be of this job, and in exact numerics compute the same bits (PROTOCOLS 1). Raises Refused."""
        run = self._run
        if request.job_digest != self._job_digest:
            raise Refused(
                f"job digest is {request.job_digest[:12]!r}, this run's is {self._job_digest[:12]!r}; "
                "start the worker with the run's job.yaml"
            )
        known = run.identity
        if known is None:
            if request.num_units < 1 or request.steps_per_epoch < 1:
                raise InvalidRequest(
                    f"num_units is {request.num_units} and steps_per_epoch {request.steps_per_epoch}; both must be positive"
                )
            run.adopt_identity(
                RunIdentity(
                    probe_digest=request.probe_digest, probe_detail=request.probe_detail, num_units=request.num_units,
                    steps_per_epoch=request.steps_per_epoch, train_samples=request.train_samples,
                    dataset_digest=request.dataset_digest, unit_names=tuple(request.unit_names),
                    boundary_bytes_per_sample=request.boundary_bytes_per_sample, cacheable=request.cacheable,
                    cache_refusal=request.cache_refusal, tied=request.tied,
                )
            )  # fmt: skip
            self._controller.note_identity()
            return
        for name in ("num_units", "steps_per_epoch", "dataset_digest"):
            if getattr(request, name) != getattr(known, name):
                raise Refused(
                    f"{name} is {getattr(request, name)!r}, this run's is {getattr(known, name)!r}; it reads other data or code"
                )
        if run.job.training.numerics == "exact" and request.probe_digest != known.probe_digest:
            if run.accept_numerics:
                self._controller.accept_numerics(request.probe_digest, request.probe_detail)
                return
            raise Refused(
                f"probe digest is {request.probe_digest[:12]} ({request.probe_detail}), this run's is {known.probe_digest[:12]} "
                f"({known.probe_detail}); it computes other bits: use a like machine, or resume with --accept-numerics"
            )

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        run = self._run
        worker = run.members.get(request.worker_id)
        if worker is None or worker.presence == GONE:
            return pb.HeartbeatResponse(known=False)
        worker.last_heard = run.clock()
        if request.HasField("generation"):
            generation = _generation(request.generation)
            if generation != worker.generation:
                worker.generation = generation
                run.wake.set()
        if request.step != worker.step:
            worker.step = request.step
            if run.current is not None and request.worker_id == run.current.placement.workers[0]:
                run.wake.set()
        worker.phase, worker.phase_seconds, worker.waiting_seconds = request.phase, request.phase_seconds, request.waiting_seconds
        worker.phase_told_at = run.clock()
        worker.phase_p99, worker.busy_seconds = dict(request.phase_p99_seconds), request.busy_seconds
        worker.resident_bytes = request.resident_bytes
        worker.uncovered_units = tuple(request.uncovered_units)
        if request.phase == "recovery":
            run.wake.set()
        if request.HasField("cache"):
            worker.cache = to_record(request.cache, CacheProfile)
        if request.HasField("link"):
            worker.link = to_record(request.link, LinkProfile)
        if request.step_parts:
            worker.step_parts = dict(request.step_parts)
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
        return pb.ReportStatisticsResponse(durable_interval=self._durable_interval())

    async def ReportRecords(self, request: pb.ReportRecordsRequest, context: Any) -> pb.ReportRecordsResponse:
        run = self._run
        self._known(request.worker_id)
        self._check_generation(request.generation, "records")
        records = [to_record(one, StepRecord) for one in request.records]
        try:
            await run.records.take(records, run.state.lineages, run.job.training.numerics == "exact")
        except ResultsDiffer as error:
            log.error("results differ error=%s", error)
            self._controller.ending.fail(str(error))
        for event in request.events:
            self._controller.note_worker_event(event)
        if request.HasField("outcome"):
            self._controller.ending.note_outcome(request.outcome)
        run.wake.set()
        lineage = run.records.lineage
        return pb.ReportRecordsResponse(
            durable_step=run.records.durable_step(lineage, run.state.starts_at(lineage)), durable_lineage=lineage
        )

    async def WatchPlan(self, request: pb.WatchPlanRequest, context: Any) -> AsyncIterator[pb.WatchPlanResponse]:
        run, controller = self._run, self._controller
        worker = self._known(request.worker_id)
        queue = run.streams.open(request.worker_id)
        worker.watching = True
        try:
            preparation = controller.reshaping.preparation
            told = preparation is not None and preparation.told and not preparation.withdrawn
            ended = controller.ending.end_reason if run.ended else ""
            for message in welcome(run, worker, told, controller.ending.draining, ended, controller.entering.fences()):
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
        self._controller.entering.note_report(request.worker_id, request)
        self._run.wake.set()
        return pb.ReportRecoveryResponse()

    async def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveResponse:
        controller = self._controller
        if request.error:
            log.error("worker failed worker=%s error=%r", request.worker_id, request.error)
        if request.ended:
            self._run.members.end(request.worker_id, "" if request.user_mistake else request.error)
        if request.user_mistake:  # also of a worker that could not even register
            controller.ending.fail(request.error or request.reason, user_mistake=True)
        controller.note_departure(request.worker_id, request.reason or "it ended", "ended" if request.ended else "leaving")
        return pb.LeaveResponse()

    async def Command(self, request: pb.CommandRequest, context: Any) -> pb.CommandResponse:
        return pb.CommandResponse(answer=self._controller.commands.accept(request))

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

    def _durable_interval(self) -> int:
        run = self._run
        lineage = run.state.lineage
        first = run.state.starts_at(lineage) // run.calendar.interval_steps if run.calendar else 0
        return run.statistics.durable_interval(lineage, first)


def _generation(message: Any) -> GenerationId:
    return GenerationId(incarnation=message.incarnation, counter=message.counter)


def add_control(server: grpc.aio.Server, controller: Controller) -> None:
    control_pb2_grpc.add_ControlServicer_to_server(ControlServicer(controller), server)
