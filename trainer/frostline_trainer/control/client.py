"""The worker's client of the Control service: registration, heartbeats, reports and the watch, each in a thread of its own.

No step waits for any of them (docs/design.md 4.4). An unreachable controller does not count as failed: the threads try again
until it is back, and read its address file anew each time.
"""

import logging
import threading
import time
from collections.abc import Callable

import grpc

from frostline_contract.plan import GenerationId
from frostline_contract.statistics import IntervalStatistics, StepRecord, StepTrace
from frostline_proto.v1 import control_pb2, plan_pb2
from frostline_rpc.channel import error_text
from frostline_rpc.convert import to_message
from frostline_trainer.control.connection import CALL_SECONDS, FINAL_ERRORS, ControllerConnection, Refused, portions
from frostline_trainer.control.heartbeats import Heartbeats
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.control.unsent import Unsent
from frostline_trainer.process.plug import Plug

log = logging.getLogger(__name__)
OUTCOME_RETRY_SECONDS = 2.0
OUTCOME_SECONDS = 60.0
"""Timeout of one attempt to send the outcome; another one follows."""


class ControlClient:
    """A client whose calls survive a controller's restart.

    Args:
        controller, token: Address and token, or paths of files that hold them (ControllerConnection).
        mailbox: Receives the watched messages.
        snapshot: Called by the heartbeat thread for a HeartbeatRequest.
        acknowledge: Called with (lineage, step, interval) of what is durable now; None: unchanged.
        plug: Hook for planned faults; None: none.
        on_fence, on_stack, on_lost: Called in threads of this client with a generation, with a reason, and without arguments: for
            messages that cannot wait for the training thread.
    """

    def __init__(self, controller: str, token: str, registration: control_pb2.RegisterRequest, mailbox: Mailbox,
                 snapshot: Callable[[], control_pb2.HeartbeatRequest],
                 acknowledge: Callable[[int, int | None, int | None], None], plug: Plug | None = None) -> None:  # fmt: skip
        self._connection, self._registration = ControllerConnection(controller, token, plug or Plug()), registration
        self._mailbox, self._snapshot, self._acknowledge = mailbox, snapshot, acknowledge
        self.on_fence: Callable[[GenerationId], None] = lambda generation: None
        self.on_stack: Callable[[str], None] = lambda reason: None
        self.on_lost: Callable[[], None] = lambda: None
        self._wake = threading.Event()
        self._stopping = self._connection.stopping
        self._generation = GenerationId(incarnation=0, counter=0)
        self._outgoing: Callable[[], tuple[list[StepRecord], list[IntervalStatistics]]] = lambda: ([], [])
        self._unsent = Unsent()
        self._recovery: control_pb2.ReportRecoveryRequest | None = None
        self._recovery_due = threading.Event()
        self.heartbeat_seconds = 0.5
        self.response: control_pb2.RegisterResponse | None = None

    # ---- starting and ending

    def register(self, patience_seconds: float = 60.0) -> control_pb2.RegisterResponse:
        """Join the run. Raises Refused if the controller refuses this worker, TimeoutError if no controller answers."""
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                self.response = self._connection.once("Register", self._registration)
                if self._recovery is not None:
                    self._recovery_due.set()
                self.heartbeat_seconds = self.response.heartbeat_seconds or self.heartbeat_seconds
                return self.response
            except (grpc.RpcError, OSError) as error:
                if isinstance(error, grpc.RpcError) and error.code() in FINAL_ERRORS:
                    raise Refused(error.details()) from error
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no controller answered within {patience_seconds:.0f} s: {error}") from error
                self._connection.reset()
                self._stopping.wait(0.2)

    def start(self, outgoing: Callable[[], tuple[list[StepRecord], list[IntervalStatistics]]]) -> None:
        """Start the threads. They call `outgoing` for the records and statistics that this worker should send now, if any."""
        self._outgoing = outgoing
        threads = {"watch": self._watch, "heartbeat": self._beat, "reports": self._report, "recovery": self._send_recovery}
        for name, body in threads.items():
            threading.Thread(target=self._guarded, args=(body,), name=name, daemon=True).start()

    def stop(self) -> None:
        """End all threads and calls under way; a call that waits for the controller raises."""
        self._connection.stop()
        self._wake.set()
        self._recovery_due.set()

    def entered(self, generation: GenerationId) -> None:
        """Name this generation in all messages from now on."""
        self._recovery = None
        self._generation = generation
        self._registration.generation.CopyFrom(to_message(generation, plan_pb2.GenerationId))

    def send_store_port(self, port: int) -> bool:
        """Report the new port of the worker's store to the controller. Returns whether the controller has answered."""
        self._registration.store_port = port
        try:
            self.register(patience_seconds=3.0)
        except (TimeoutError, Refused) as error:
            log.warning("the store's new port is not told yet: %s", error)
            return False
        return True

    # ---- calls

    def describe_job(self, patience_seconds: float = 20.0) -> str:
        """The run's job as the controller has it now, as JSON (`job_from_json`)."""
        return str(self._connection.call("DescribeJob", control_pb2.DescribeJobRequest(), patience_seconds).job)

    def _ready(self, generation: GenerationId, ready: bool, seconds: float = 0.0, reason: str = "", entered: bool = False,
               step: int = 0) -> None:  # fmt: skip
        """Report a plan's state here; forming or entering it took `seconds`. Raises as ControllerConnection.call."""
        request = control_pb2.ReadyRequest(
            worker_id=self._registration.worker_id, generation=to_message(generation, plan_pb2.GenerationId),
            ready=ready, seconds=seconds, reason=reason, entered=entered, step=step,
        )  # fmt: skip
        self._connection.call("Ready", request)

    def ready_in_background(self, generation: GenerationId, seconds: float) -> None:
        """Report that a plan is prepared, without waiting for the answer."""
        self._in_background(lambda: self._ready(generation, True, seconds))

    def not_ready_in_background(self, generation: GenerationId, reason: str, step: int) -> None:
        """Report: not ready for a plan in votes after that of `step` + 1, which may be under way. Committed here: `step`."""
        self._in_background(lambda: self._ready(generation, False, reason=reason, step=step))

    def entered_in_background(self, generation: GenerationId, seconds: float, step: int) -> None:
        """Report that a generation was entered, without waiting for the answer."""
        self._in_background(lambda: self._ready(generation, True, seconds, entered=True, step=step))

    def leave_in_background(self, reason: str) -> None:
        """Ask for a plan without this worker: now, and of each new controller when this worker registers there."""
        self._registration.leaving = reason
        self._in_background(lambda: self.leave(reason, ended=False, patience_seconds=60.0))

    def _in_background(self, call: Callable[[], None]) -> None:
        threading.Thread(target=self._call_once_registered, args=(call,), daemon=True).start()

    def _call_once_registered(self, call: Callable[[], None]) -> None:
        """Make a call; if a new controller does not know this worker, wait until another thread has registered it there."""
        deadline = time.monotonic() + OUTCOME_SECONDS
        while not self._stopping.is_set():
            try:
                call()
                break
            except (Refused, TimeoutError) as error:
                successor = isinstance(error, Refused) and error.unknown_worker
                if not successor or time.monotonic() > deadline:
                    log.warning("%s", error)
                    break
            self._stopping.wait(0.2)

    def report_recovery(self, request: control_pb2.ReportRecoveryRequest) -> None:
        """Send a report, with retries until it is answered; and again to each new controller, until a plan is entered."""
        self._recovery = request
        self._recovery_due.set()

    def _send_recovery(self) -> None:
        while not self._stopping.is_set():
            self._recovery_due.wait()
            self._recovery_due.clear()
            request = self._recovery
            if request is not None and not self._stopping.is_set():
                try:
                    self._connection.once("ReportRecovery", request)
                except (grpc.RpcError, OSError):
                    self._recovery_due.set()
                    raise

    def leave(self, reason: str, ended: bool, error: str = "", user_mistake: bool = False,
              patience_seconds: float = 10.0) -> None:  # fmt: skip
        """Report that this worker wants to leave, or has ended (traceback: `error`). Raises as ControllerConnection.call."""
        whose = self._registration.worker_id
        request = control_pb2.LeaveRequest(worker_id=whose, reason=reason, ended=ended, error=error, user_mistake=user_mistake)
        self._connection.call("Leave", request, patience_seconds)

    def outcome(self, outcome: control_pb2.RunOutcome) -> None:
        """Send the run's outcome with all unacknowledged records, with retries until it is stored.

        There is no limit of retries, since no other worker sends the outcome. Returns early if another generation has replaced
        this one, or this client is stopped.
        """
        generation = self._generation
        while self._generation == generation and not self._stopping.is_set():
            try:
                if self._hand_in(outcome, generation):
                    return
            except (Refused, TimeoutError) as error:
                # A new controller does not know this worker until another thread has registered it there.
                successor = isinstance(error, Refused) and error.unknown_worker
                log.log(logging.INFO if successor else logging.WARNING, "the outcome is not taken yet: %s", error)
                self._stopping.wait(0.2 if successor else OUTCOME_RETRY_SECONDS)
        log.info("the outcome of generation %s is not handed in any more", generation)

    def _hand_in(self, outcome: control_pb2.RunOutcome, generation: GenerationId) -> bool:
        """Send one report; True if it was the last one, which contains the outcome."""
        records, statistics = self._outgoing()
        if statistics:
            self._send_statistics(statistics, OUTCOME_SECONDS, generation)
        request = self._records_request(records, generation)
        if last := len(request.records) == len(records):
            request.outcome.CopyFrom(outcome)
        response = self._connection.call("ReportRecords", request, OUTCOME_SECONDS)
        self._acknowledge(response.durable_lineage, response.durable_step, None)
        return last

    def add_event(self, event: control_pb2.RunEvent | StepTrace) -> None:
        """Add an event or a step's trace to the next report."""
        self._unsent.add(event)
        self._wake.set()

    def wake(self) -> None:
        """Let the report thread send now."""
        self._wake.set()

    # ---- threads

    def _guarded(self, body: Callable[[], None]) -> None:
        """Run `body`, again after any error, until the client stops: without one of these threads the run would wait for ever."""
        while not self._stopping.is_set():
            try:
                self._connected(body)
            except Exception:
                log.exception("thread %s met a fault and goes on", threading.current_thread().name)
                self._stopping.wait(0.5)

    def _connected(self, body: Callable[[], None]) -> None:
        """Run `body`; if its connection fails, reset it and register again if needed."""
        try:
            body()
        except grpc.RpcError as error:
            if not self._stopping.is_set():
                self._reconnect(error)
        except (OSError, TimeoutError) as error:
            log.warning("controller not reached: %s", error)
            self._stopping.wait(0.5)
        except Refused as refusal:
            # The controller does not know this worker (any more): register again, or learn that it is refused.
            log.warning("%s; registering again", refusal)
            self._stopping.wait(0.5)
            self._register_again()

    def _register_again(self) -> None:
        try:
            self.register(patience_seconds=3.0)
        except TimeoutError as error:
            log.warning("%s", error)
        except Refused as refusal:
            self._mailbox.put_notice(lost=str(refusal))
            self.on_lost()

    def _reconnect(self, error: grpc.RpcError) -> None:
        if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
            # A new controller does not know this worker yet. This is final only if it refuses the registration.
            log.info("%s; registering again", error.details())
            self._stopping.wait(0.1)
            self._register_again()
            return
        log.info("controller not reached (%s); trying again", error_text(error))
        self._stopping.wait(0.3)
        self._connection.reset()
        self._register_again()

    def _watch(self) -> None:
        for message in self._connection.watch(self._registration.worker_id):
            self._mailbox.take(message, self.on_fence, self.on_stack)
        self._stopping.wait(0.2)

    def _beat(self) -> None:
        heartbeats = Heartbeats(self._snapshot, self._stopping, lambda: self.heartbeat_seconds, CALL_SECONDS)
        for response in self._connection.heartbeats(iter(heartbeats)):
            heartbeats.note_answer()
            answer = response.heartbeat
            if not answer.known:
                self.register(patience_seconds=3.0)
                continue
            self._acknowledge(answer.durable_lineage, answer.durable_step, answer.durable_interval)

    def _report(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(0.5)
            self._wake.clear()
            records, statistics = self._outgoing()
            if statistics:
                self._send_statistics(statistics, CALL_SECONDS, self._generation)
            if records or self._unsent:
                request = self._records_request(records, self._generation)
                response = self._connection.once("ReportRecords", request, timeout=20.0)
                self._unsent.drop(request)
                self._acknowledge(response.durable_lineage, response.durable_step, None)

    # ---- plumbing

    def _send_statistics(self, statistics: list[IntervalStatistics], patience_seconds: float, generation: GenerationId) -> None:
        for some in portions(to_message(item, plan_pb2.IntervalStatistics) for item in statistics):
            request = control_pb2.ReportStatisticsRequest(
                worker_id=self._registration.worker_id,
                generation=to_message(generation, plan_pb2.GenerationId),
                statistics=some,
            )
            self._connection.call("ReportStatistics", request, patience_seconds)
            self._acknowledge(some[-1].lineage, None, some[-1].number)

    def _records_request(self, records: list[StepRecord], generation: GenerationId) -> control_pb2.ReportRecordsRequest:
        """A report of the first records, as many as fit, and of all events and traces that are not sent yet."""
        return self._unsent.fill(
            control_pb2.ReportRecordsRequest(
                worker_id=self._registration.worker_id,
                generation=to_message(generation, plan_pb2.GenerationId),
                records=next(portions(to_message(record, plan_pb2.StepRecord) for record in records), []),
            )
        )
