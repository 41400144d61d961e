"""A controller made by hand, for tests of workers: real gRPC, one generation after the other, failures answered by production's
pure functions. It decides nothing by itself: layouts, faults and reshapes come from the test."""

import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from frostline_contract.plan import GLOO, Backend, Decision, GenerationId, Placement, Plan
from frostline_contract.statistics import IntervalStatistics, StepRecord
from frostline_controller.members.membership import Worker
from frostline_controller.planner.draft import PlanDraft
from frostline_controller.planner.plans import entry_plan, survivors_plan, switching_plan
from frostline_controller.recovery.answer import answer
from frostline_controller.recovery.facts import Answer, Failure, GoBack, GoOn, SurvivorReport, Wait
from frostline_controller.recovery.reports import survivor_report
from frostline_controller.run.checkpoints import newest_checkpoint
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import control_pb2_grpc, plan_pb2
from frostline_rpc.convert import to_message, to_record
from tests.hand_made_plans import Layout, next_generation
from tests.recovery_member import INTERVAL_STEPS

WAIT_SECONDS = 280.0
"""Only a hang lasts this long, on however busy a machine."""


@dataclass
class Received:
    """The reports of workers. records and statistics: by their keys; a repeated one must be the same."""

    records: dict[tuple[int, int], StepRecord] = field(default_factory=dict)
    statistics: dict[tuple[int, int], IntervalStatistics] = field(default_factory=dict)
    events: list[pb.RunEvent] = field(default_factory=list)
    outcome: pb.RunOutcome | None = None
    reports: dict[str, SurvivorReport] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    ready: dict[GenerationId, set[str]] = field(default_factory=dict)
    entered: dict[GenerationId, set[str]] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)


class HandController(control_pb2_grpc.ControlServicer):
    """Serves until `close`. changed: notified at every report."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.received = folder, Received()
        self.changed = threading.Condition()
        self.workers: dict[str, Worker] = {}
        self._streams: dict[str, queue.Queue[pb.WatchPlanResponse | None]] = {}
        self._server = grpc.server(ThreadPoolExecutor(32))
        control_pb2_grpc.add_ControlServicer_to_server(self, self._server)
        port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()
        (folder / "controller.address").write_text(f"127.0.0.1:{port}")

    def close(self) -> None:
        for stream in self._streams.values():
            stream.put(None)
        self._server.stop(0.2).wait()

    def send(self, worker_id: str, message: pb.WatchPlanResponse) -> None:
        self._streams.setdefault(worker_id, queue.Queue()).put(message)

    def wait_until(self, condition: Any, what: str) -> Any:
        """Wait until `condition` returns a true value, and return it. Fails after WAIT_SECONDS."""
        deadline = time.monotonic() + WAIT_SECONDS
        with self.changed:
            while not (found := condition()):
                assert time.monotonic() < deadline, f"no {what} within {WAIT_SECONDS:g} s; errors: {self.received.errors}"
                self.changed.wait(0.05)
            return found

    # ---- the service

    def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterResponse:
        with self.changed:
            self.workers[request.worker_id] = Worker(
                request.worker_id, request.pod_name, request.failure_domain, request.process_id, request.store_host,
                request.store_port, None, 0.0, 0.0,  # type: ignore[arg-type]  no profile is looked at here
            )  # fmt: skip
            self.changed.notify_all()
        return pb.RegisterResponse(incarnation=1, heartbeat_seconds=0.1, checkpoint_root=str(self.folder / "checkpoints"))

    def WatchPlan(self, request: pb.WatchPlanRequest, context: Any) -> Iterator[pb.WatchPlanResponse]:
        stream = self._streams.setdefault(request.worker_id, queue.Queue())
        while (message := stream.get()) is not None:
            yield message

    def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        lineage, step = max(self.received.records, default=(0, 0))
        return pb.HeartbeatResponse(known=True, durable_lineage=lineage, durable_step=step)

    def Heartbeats(self, requests: Iterator[pb.HeartbeatsRequest], context: Any) -> Iterator[pb.HeartbeatsResponse]:
        for request in requests:
            yield pb.HeartbeatsResponse(heartbeat=self.Heartbeat(request.heartbeat, context))

    def ReportStatistics(self, request: pb.ReportStatisticsRequest, context: Any) -> pb.ReportStatisticsResponse:
        with self.changed:
            for message in request.statistics:
                one = to_record(message, IntervalStatistics)
                assert self.received.statistics.setdefault((one.lineage, one.number), one) == one
        return pb.ReportStatisticsResponse()

    def ReportRecords(self, request: pb.ReportRecordsRequest, context: Any) -> pb.ReportRecordsResponse:
        with self.changed:
            for message in request.records:
                record = to_record(message, StepRecord)
                known = self.received.records.setdefault((record.lineage, record.step), record)
                assert numerics(known) == numerics(record), f"two records of step {record.step}: {known} and {record}"
            self.received.events += request.events
            if request.HasField("outcome"):
                self.received.outcome = request.outcome
            self.changed.notify_all()
            lineage, step = max(self.received.records, default=(0, 0))
        return pb.ReportRecordsResponse(durable_lineage=lineage, durable_step=step)

    def Ready(self, request: pb.ReadyRequest, context: Any) -> pb.ReadyResponse:
        generation = to_record(request.generation, GenerationId)
        with self.changed:
            book = self.received.entered if request.entered else self.received.ready
            if request.ready:
                book.setdefault(generation, set()).add(request.worker_id)
            self.changed.notify_all()
        return pb.ReadyResponse()

    def ReportRecovery(self, request: pb.ReportRecoveryRequest, context: Any) -> pb.ReportRecoveryResponse:
        with self.changed:
            self.received.reports[request.worker_id] = survivor_report(request)
            if request.error:
                self.received.errors[request.worker_id] = request.error
            self.changed.notify_all()
        return pb.ReportRecoveryResponse()

    def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveResponse:
        with self.changed:
            self.received.leaving.add(request.worker_id)
            if request.error:
                self.received.errors[request.worker_id] = request.error
            self.changed.notify_all()
        return pb.LeaveResponse()


def numerics(record: StepRecord) -> tuple[Any, ...]:
    """Return the part of a step's record that no placement and no failure may change."""
    return (record.step, record.loss, record.learning_rate, record.gradient_norm, record.unit_gradient_norms, record.freeze_point,
            record.refused, record.numerics_hash, sorted(record.evaluation.items()))  # fmt: skip


class HandMadeRun:
    """Leads workers through generations. ended(): ids of workers whose processes have ended. layouts: by number of workers left.

    cut: how each unit's state is cut, as `exact_cases.Case.cut`. initial: freeze point of step 1.
    """

    def __init__(self, service: HandController, ended: Any, layouts: Mapping[int, Layout], domains: Mapping[str, str],
                 decisions: Sequence[Decision] = (), cut: tuple[int, int, int] = (1, 1, 1), backend: Backend = GLOO,
                 initial: int = 0) -> None:  # fmt: skip
        self.service, self.received = service, service.received
        self._ended, self._layouts, self._domains, self._decisions = ended, layouts, domains, tuple(decisions)
        self._cut, self._initial = cut, initial
        self._backend: Backend = backend
        self.current: Plan | None = None
        self.prepared: Plan | None = None
        self.answers: list[Answer] = []
        self.plans: list[Plan] = []
        self.stopped: set[str] = set()
        self._allowed: list[Plan] = []

    def start(self, layout: Layout) -> Plan:
        placement = layout.placement(0)
        plan = entry_plan(self._draft(placement, 0), base=None, checkpoint=None, run_epoch=0)
        return self._announce(plan.model_copy(update={"decisions": self._decisions}))

    def reshape(self, layout: Layout, steps: tuple[int, int], decision: int = 0, freeze_point: int = 0) -> Plan:
        """Announce a plan to switch to in a vote of `steps`; members may vote for it when all are ready."""
        assert self.current is not None
        placement = layout.placement(freeze_point)
        draft = self._draft(placement, self._lineage, freeze_point, decision)
        plan = switching_plan(draft, base=self.current, window=steps)
        self.prepared = plan.model_copy(update={"decisions": self._decisions, "backend": self._backend})
        self.plans.append(self.prepared)
        self._send(self.prepared.participants, plan=to_message(self.prepared, plan_pb2.Plan))
        return self.prepared

    def allow(self, plan: Plan) -> None:
        self._send(plan.participants, ready=pb.ReadyNotice(generation=to_message(plan.generation, plan_pb2.GenerationId)))

    def lead(self) -> pb.RunOutcome:
        """Answer every failure until the outcome is reported; then end all workers."""
        while True:
            self.service.wait_until(self._news, "news")
            if self.received.outcome is not None:
                break
            self._follow_switch()
            if self._has_failed():
                self._recover()
        self._send(self.service.workers, end=pb.EndNotice(reason="completed"))
        return self.received.outcome

    # ---- what has happened

    def _news(self) -> bool:
        ready = self.prepared is not None and self.received.ready.get(self.prepared.generation, set()) >= set(
            self.prepared.participants
        )
        if ready and self.prepared is not None and self.prepared not in self._allowed:
            self._allowed.append(self.prepared)
            self.allow(self.prepared)
        return self.received.outcome is not None or self._has_failed() or self._has_switched()

    def _has_switched(self) -> bool:
        return self.prepared is not None and bool(self.received.entered.get(self.prepared.generation))

    def _follow_switch(self) -> None:
        if self._has_switched():
            self.current, self.prepared = self.prepared, None

    def _named(self) -> set[str]:
        return {worker for plan in (self.current, self.prepared) if plan is not None for worker in plan.participants}

    def _has_failed(self) -> bool:
        assert self.current is not None
        reported = any(self.current.generation <= report.newest_received for report in self.received.reports.values())
        return reported or bool(self._ended() & self._named()) or bool(self.stopped & self._named())

    def _recover(self) -> None:
        """Fence, collect, answer by production's functions, announce."""
        plans = [plan for plan in (self.current, self.prepared) if plan is not None]
        newest = max((plan.generation for plan in plans), key=lambda one: (one.incarnation, one.counter))
        fence = pb.FenceNotice(generation=to_message(newest, plan_pb2.GenerationId), reason="a member is gone")
        self._send(self._named() - self._ended() - self.stopped, fence=fence)
        found = self.service.wait_until(lambda: self._answer(), "reports")
        self.answers.append(found)
        left = sorted(set(self.received.reports) - self._ended() - self.stopped)
        layout = self._layouts[len(left)]
        placement = layout.placement(0).model_copy(update={"workers": tuple(left[: len(layout.placement(0).workers)])})
        self.received.reports.clear()
        assert self.current is not None
        if isinstance(found, GoOn):
            lineage = self._lineage if found.extends_all else self._lineage + 1
            plan = survivors_plan(self._draft(placement, lineage), base=self.current, found=found)
        else:
            assert isinstance(found, GoBack), found
            checkpoint = newest_checkpoint(self.service.folder / "checkpoints")
            place = (checkpoint.path, checkpoint.step) if checkpoint is not None else None
            draft = self._draft(placement, self._lineage + 1)
            plan = entry_plan(draft, base=self.current.generation, checkpoint=place, run_epoch=0)
        self.prepared = None
        if plan.lineage > self._lineage:
            self._decide_again(plan)
        self._announce(plan.model_copy(update={"decisions": self._decisions}))

    def _decide_again(self, plan: Plan) -> None:
        """Repeat the decisions on intervals that a new lineage trains again; decisions on the other intervals stay due in it."""
        for one in [one for one in self._decisions if one.lineage == 0]:
            redone = one.interval * INTERVAL_STEPS > plan.start_step
            lineage = plan.lineage if redone else one.lineage
            self._decisions += (one.model_copy(update={"lineage": lineage, "decided_in": plan.lineage}),)

    def _answer(self) -> Answer | None:
        assert self.current is not None
        failure = Failure(
            self.current, self.prepared, dict(self.received.reports), frozenset(self._ended()), frozenset(self.stopped)
        )
        found = answer(failure)
        return None if isinstance(found, Wait) else found

    @property
    def _lineage(self) -> int:
        return max((plan.lineage for plan in self.plans), default=0)

    def _draft(self, placement: Placement, lineage: int, freeze_point: int = 0, decision: int = 0) -> PlanDraft:
        return PlanDraft(
            generation=next_generation(), lineage=lineage, placement=placement, first_worker=self._store(placement.workers),
            freeze_point=max(freeze_point, self._initial), decision_number=decision, domains=self._domains,
            state_ranges=self._cut[0], state_tiles=self._cut[1], hidden_tiles=self._cut[2],
        )  # fmt: skip

    def _store(self, workers: Sequence[str]) -> Worker:
        return self.service.workers[workers[0]]

    def _announce(self, plan: Plan) -> Plan:
        plan = plan.model_copy(update={"backend": self._backend})
        self.current = plan
        self.plans.append(plan)
        self._send(plan.participants, plan=to_message(plan, plan_pb2.Plan))
        return plan

    def _send(self, workers: Any, **message: Any) -> None:
        for worker in sorted(workers):
            self.service.send(worker, pb.WatchPlanResponse(**message))
