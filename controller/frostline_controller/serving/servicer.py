"""The Control service: turns workers' messages into facts and wakes the reconciler. It decides nothing."""

import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc

from frostline_contract.device import DeviceFacts
from frostline_contract.job import job_to_json
from frostline_contract.phases import Phase
from frostline_contract.plan import GenerationId
from frostline_contract.statistics import IntervalStatistics, SizeProfiles, StepRecord, StepTrace
from frostline_contract.worker_state import WorkerState
from frostline_controller.members.admission import Admission
from frostline_controller.members.membership import GONE, Worker
from frostline_controller.members.start_wait import is_left_over
from frostline_controller.planner.kept_profile import KeptProfile
from frostline_controller.run.controller import Controller
from frostline_controller.run.records import ResultsDiffer
from frostline_controller.serving.announce import welcome
from frostline_controller.serving.status import status_of
from frostline_controller.serving.streams import Announcement
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import control_pb2_grpc, plan_pb2
from frostline_rpc.convert import generation_of, to_message, to_record
from frostline_rpc.errors import InvalidRequest, Refused, StaleGeneration

log = logging.getLogger(__name__)

HEARTBEATS_SECONDS = 60.0
"""How long a stream of heartbeats lasts. A token is checked when a stream opens, and may expire later."""


class ControlServicer(control_pb2_grpc.ControlServicer):
    """The methods of docs/grpc.md. They raise the errors of `frostline_rpc.errors`; they acknowledge only what is durable."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._facts, self._store, self._outbox = controller.run.facts, controller.run.store, controller.run.outbox
        self._admission = Admission(controller)

    async def DescribeJob(self, request: pb.DescribeJobRequest, context: Any) -> pb.DescribeJobResponse:
        """Return the run's current job and its measured profiles, and take the sizes that the calling worker has measured."""
        if request.HasField("measured"):
            self._controller.settling.take(to_record(request.measured, SizeProfiles))
        profiles = [to_message(profile, plan_pb2.WorkerProfile) for profile in self._controller.handed_out.profiles()]
        return pb.DescribeJobResponse(job=job_to_json(self._facts.job), profiles=profiles)

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterResponse:
        """Admit a worker process; an older process of its place ends. Raises InvalidRequest and errors of Admission.check."""
        facts = self._facts
        if not request.worker_id or "/" not in request.worker_id:
            raise InvalidRequest(f"worker_id is {request.worker_id!r}; it must be '<pod uid>/<process nonce>'")
        await self._admission.check(request)
        now = facts.clock()
        worker = Worker(
            worker_id=request.worker_id,
            pod_name=request.pod_name,
            failure_domain=request.failure_domain,
            process_id=request.process_id,
            store_host=request.store_host,
            store_port=request.store_port,
            profile=KeptProfile.of_message(request.profile),
            registered_at=now,
            last_received=now,
            unwatched_since=now,
            generation=generation_of(request.generation) if request.HasField("generation") else None,
            device=to_record(request.device, DeviceFacts) if request.HasField("device") else None,
        )
        named = {name for plan in facts.live_plans for name in plan.participants}
        for older in facts.members.displaced_by(worker, facts.job.placement.workers_per_pod, named):
            facts.members.end(older, "")  # the agent starts another only when the first has ended
            self._controller.departures.note(older, f"its process was replaced by {worker.process_id}", WorkerState.ENDED)
        if facts.members.add(worker):
            self._outbox.streams.end(worker.worker_id)
            await self._controller.note_joined(worker, request.leaving)
        return pb.RegisterResponse(
            incarnation=facts.state.incarnation,
            heartbeat_seconds=facts.job.controller.heartbeat_seconds,
            checkpoint_root=str(self._controller.checkpoint_root),
            cache_address=facts.cache_address(),
        )

    async def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        """Take one heartbeat."""
        return self._take_heartbeat(request)

    async def Heartbeats(
        self, requests: AsyncIterator[pb.HeartbeatsRequest], context: Any
    ) -> AsyncIterator[pb.HeartbeatsResponse]:
        """Take a stream of heartbeats. It is ended after HEARTBEATS_SECONDS, so that the caller's token is checked again."""
        ends_at = self._facts.clock() + HEARTBEATS_SECONDS
        async for request in requests:
            answer = self._take_heartbeat(request.heartbeat)
            if not (request.quiet and answer.known):
                yield pb.HeartbeatsResponse(heartbeat=answer)
            if self._facts.clock() > ends_at:
                return

    def _take_heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Store a heartbeat's facts. A thousand arrive in a second, so values that seldom change are not converted."""
        facts = self._facts
        worker = facts.members.get(request.worker_id)
        if worker is None or worker.presence == GONE:
            return pb.HeartbeatResponse(known=False)
        worker.last_received = facts.clock()
        if request.HasField("generation") and not _is(request.generation, worker.generation):
            worker.generation = self._same_generation(request.generation)
            facts.wake.set()
        if request.step != worker.step:
            worker.step = request.step
            if facts.current is not None and request.worker_id == facts.current.placement.workers[0]:
                facts.wake.set()
        if request.phase == Phase.RECOVERY and worker in facts.left_behind():
            self._controller.note_answering(worker)
        worker.phase, worker.phase_seconds, worker.waiting_seconds = request.phase, request.phase_seconds, request.waiting_seconds
        worker.device_phase, worker.device_seconds = request.device_phase, request.device_seconds
        worker.device_waiting = request.device_waiting
        worker.phase_reported_at = facts.clock()
        worker.phase_p99, worker.busy_seconds = request.phase_p99_seconds, request.busy_seconds
        worker.resident_bytes = request.resident_bytes
        worker.uncovered_pieces = tuple(request.uncovered_pieces)
        if request.phase == Phase.RECOVERY:
            facts.wake.set()
        if request.HasField("memory"):
            worker.memory = request.memory
            facts.memory.note(facts.current, worker)
        if request.HasField("spending"):
            worker.spending, worker.spending_at = request.spending, worker.last_received
        if request.HasField("cache"):
            worker.cache = request.cache
        if request.HasField("link"):
            worker.link = request.link
        if request.HasField("near_link"):
            worker.near_link = request.near_link
        if request.step_parts:
            worker.step_parts = request.step_parts
        return pb.HeartbeatResponse(known=True, durable_interval=self._durable_interval(), **self._durable_records())

    async def ReportStatistics(self, request: pb.ReportStatisticsRequest, context: Any) -> pb.ReportStatisticsResponse:
        """Make the statistics of intervals durable and acknowledge them. Raises InvalidRequest for a wrong number of norms."""
        self._known(request.worker_id)
        self._check_generation(request.generation, "statistics")
        statistics = [to_record(one, IntervalStatistics) for one in request.statistics]
        units = self._facts.identity.num_units if self._facts.identity else 0
        for one in statistics:
            if len(one.unit_gradient_norms) != units:
                raise InvalidRequest(
                    f"statistics of interval {one.number} have {len(one.unit_gradient_norms)} norms for {units} units"
                )
        await self._store.statistics.take(statistics)
        self._facts.wake.set()
        self._facts.hurry.set()
        return pb.ReportStatisticsResponse(durable_interval=self._durable_interval())

    async def ReportRecords(self, request: pb.ReportRecordsRequest, context: Any) -> pb.ReportRecordsResponse:
        """Make records, events and traces durable and acknowledge them; take the run's outcome where one is sent."""
        facts, store = self._facts, self._store
        self._known(request.worker_id)
        self._check_generation(request.generation, "records")
        if request.HasField("outcome"):
            self._check_outcome(request.worker_id, generation_of(request.generation))
        records = [to_record(one, StepRecord) for one in request.records]
        for event in request.events:
            store.events.receive(event.kind, event.step, event.lineage, event.reason)
        try:
            await store.records.take(records, facts.state.lineages, facts.job.training.numerics == "exact")
        except ResultsDiffer as error:
            log.error("results differ error=%s", error)
            self._controller.ending.fail(str(error))
        await store.traces.take([to_record(one, StepTrace) for one in request.traces])
        for event in request.events:
            await self._controller.take_worker_event(event)
        if request.HasField("outcome"):
            await self._controller.ending.take_outcome(request.outcome)
        facts.wake.set()
        return pb.ReportRecordsResponse(**self._durable_records())

    async def WatchPlan(self, request: pb.WatchPlanRequest, context: Any) -> AsyncIterator[Announcement]:
        """Stream announcements to a worker, beginning with all that is in force. A newer stream of the worker ends this one."""
        facts, outbox, controller = self._facts, self._outbox, self._controller
        worker = self._known(request.worker_id)
        queue = outbox.streams.open(request.worker_id)
        worker.watching = True
        try:
            preparation = controller.reshaping.preparation
            member = facts.current is not None and request.worker_id in facts.current.placement.global_ranks
            draining = controller.drain.reason if member else ""
            ready = preparation is not None and preparation.notice_sent and not preparation.withdrawn
            ended = controller.ending.end_reason if facts.ended else ""
            if is_left_over(facts, worker):
                ended = facts.state.message or "the run goes on from its checkpoint in new processes"
                facts.members.give_notice(worker)
            for message in welcome(
                facts, outbox, worker, ready_announced=ready, draining=draining, end=ended, fences=controller.failures.fences()
            ):
                yield message
            while (message := await queue.get()) is not None:
                yield message
        finally:
            if outbox.streams.close(request.worker_id, queue):
                current = facts.members.get(request.worker_id)
                if current is not None:
                    current.watching, current.unwatched_since = False, facts.clock()
                facts.wake.set()

    async def Ready(self, request: pb.ReadyRequest, context: Any) -> pb.ReadyResponse:
        """Note that a worker has formed the groups of a plan, could not form them, or has entered it.

        Raises StaleGeneration for any but the running and the prepared plan.
        """
        facts = self._facts
        self._known(request.worker_id)
        generation = generation_of(request.generation)
        prepared, current = facts.state.prepared, facts.current
        if prepared is not None and generation == prepared.generation:
            self._controller.reshaping.note_ready(request.worker_id, request)
        elif current is not None and generation == current.generation:
            if request.entered:
                facts.entered[request.worker_id] = (request.step, request.seconds)
        else:
            raise StaleGeneration(
                f"generation {generation} is neither the prepared {prepared.generation if prepared else 'none'} "
                f"nor the running {current.generation if current else 'none'}"
            )
        facts.wake.set()
        return pb.ReadyResponse()

    async def ReportRecovery(self, request: pb.ReportRecoveryRequest, context: Any) -> pb.ReportRecoveryResponse:
        """Take a survivor's report after a failure. Raises StaleGeneration where a later controller has led the run already."""
        worker = self._known(request.worker_id)
        worker.last_received = self._facts.clock()
        if request.incarnation > self._facts.state.incarnation:
            raise StaleGeneration(
                f"incarnation {request.incarnation} is newer than this controller's {self._facts.state.incarnation}"
            )
        if request.HasField("memory_shortage"):
            self._controller.devices.note_shortage(request)
        self._controller.failures.note_report(request.worker_id, request)
        self._facts.wake.set()
        return pb.ReportRecoveryResponse()

    async def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveResponse:
        """Note that a worker wants to leave or has ended. A mistake that a person has to mend may end the run."""
        controller = self._controller
        if request.error:
            log.error("worker failed worker=%s error=%r", request.worker_id, request.error)
        mistake = request.user_mistake  # a worker that could not even register may report one
        if request.ended:
            controller.devices.note_end(request)
            self._facts.members.end(request.worker_id, "" if mistake else request.error)
        if mistake and controller.start_failures.has_run:
            controller.start_failures.note(request.worker_id, request.error or request.reason)
        elif mistake:
            controller.ending.fail(request.error or request.reason, user_mistake=True)
        kind = WorkerState.ENDED if request.ended else WorkerState.LEAVING
        controller.departures.note(request.worker_id, request.reason or "it ended", kind)
        return pb.LeaveResponse()

    async def Command(self, request: pb.CommandRequest, context: Any) -> pb.CommandResponse:
        """Take an operator's command and answer what will happen. Raises InvalidRequest or Refused."""
        return pb.CommandResponse(answer=await self._controller.commands.accept(request))

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusResponse:
        """Return the run's status, for `frostline status` and the terminal."""
        return status_of(self._facts, self._store)

    def _known(self, worker_id: str) -> Worker:
        worker = self._facts.members.get(worker_id)
        if worker is None or worker.presence == GONE:
            raise Refused(f"worker {worker_id!r} is not registered here; register first")
        return worker

    def _check_generation(self, message: Any, what: str) -> None:
        """Accept reports of the running generation, the prepared one, and those that led to it. Raises StaleGeneration."""
        facts = self._facts
        generation = generation_of(message)
        current, prepared = facts.current, facts.state.prepared
        known = {plan.generation for plan in (current, prepared) if plan is not None} | set(facts.state.continued)
        if generation not in known:
            raise StaleGeneration(
                f"{what} of generation {generation}: the running one is {current.generation if current else 'none'}; "
                "drop what belongs to a lineage that ended and follow the newest plan"
            )

    def _same_generation(self, message: Any) -> GenerationId:
        """A generation's identifier: the running plan's own object where they are equal, so that comparisons are by identity."""
        current = self._facts.current
        return current.generation if current is not None and _is(message, current.generation) else generation_of(message)

    def _check_outcome(self, worker_id: str, generation: GenerationId) -> None:
        """Check that an outcome comes from rank 0 of the generation that runs or is being entered. Raises Refused."""
        plans = self._facts.live_plans
        if not any(plan.generation == generation and plan.placement.workers[0] == worker_id for plan in plans):
            raise Refused(f"worker {worker_id!r} told the end of generation {generation}, which its rank 0 tells while it runs")

    def _durable_records(self) -> dict[str, int]:
        """Return the last durable step of the newest lineage, as fields of an answer."""
        records = self._store.records
        step = records.durable_step(records.lineage, self._facts.state.starts_at(records.lineage))
        return {"durable_lineage": records.lineage, "durable_step": step}

    def _durable_interval(self) -> int:
        facts = self._facts
        return self._store.statistics.durable_interval(facts.state.lineages, facts.calendar) if facts.calendar else 0


def _is(message: Any, generation: GenerationId | None) -> bool:
    """Whether a message names this generation. Called for every heartbeat."""
    return generation is not None and message.counter == generation.counter and message.incarnation == generation.incarnation


def add_control(server: grpc.aio.Server, controller: Controller) -> None:
    """Add this controller's Control service to a server."""
    control_pb2_grpc.add_ControlServicer_to_server(ControlServicer(controller), server)
