"""The worker's connection to a controller that moves: a thread goes on, wherever it is when another resets the connection."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from frostline_contract.plan import GenerationId
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import control_pb2_grpc, plan_pb2
from frostline_rpc.channel import SharedChannel, open_channel
from frostline_trainer.control.client import ControlClient
from frostline_trainer.control.connection import ControllerConnection
from frostline_trainer.control.heartbeats import Heartbeats
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.process.plug import Plug
from tests.integration.scripted_worker import wait_for

WAIT_SECONDS = 60.0


class Service(control_pb2_grpc.ControlServicer):
    """A controller that registers every worker and sends `message` to each watch stream."""

    def __init__(self, message: pb.WatchPlanResponse | None) -> None:
        self.message, self.received = message, threading.Event()
        self.knows_nobody, self.outcomes, self.entered = False, [], list[int]()
        self.answers, self.streams, self.stuck = 10**9, 0, False
        self.leaving = list[str]()

    def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterResponse:
        self.leaving.append(request.leaving)
        return pb.RegisterResponse(heartbeat_seconds=0.05)

    def Heartbeat(self, request: pb.HeartbeatRequest, context: Any) -> pb.HeartbeatResponse:
        self.received.set()
        return pb.HeartbeatResponse(known=True)

    def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveResponse:
        return pb.LeaveResponse()

    def Ready(self, request: pb.ReadyRequest, context: Any) -> pb.ReadyResponse:
        if self.knows_nobody:
            self.knows_nobody = False
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "worker 'a/1' is not registered here; register first")
        self.entered.append(request.step)
        return pb.ReadyResponse()

    def ReportRecords(self, request: pb.ReportRecordsRequest, context: Any) -> pb.ReportRecordsResponse:
        if self.knows_nobody:
            self.knows_nobody = False
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "worker 'a/1' is not registered here; register first")
        self.outcomes.append(request.outcome.status)
        return pb.ReportRecordsResponse()

    def Heartbeats(self, requests: Iterator[pb.HeartbeatsRequest], context: Any) -> Iterator[pb.HeartbeatsResponse]:
        """Answer at most `answers` heartbeats a stream; none if the service is stuck."""
        self.streams += 1
        for _, request in zip(range(self.answers), requests, strict=False):
            while self.stuck and context.is_active():
                time.sleep(0.02)
            yield pb.HeartbeatsResponse(heartbeat=self.Heartbeat(request.heartbeat, context))

    def DescribeJob(self, request: pb.DescribeJobRequest, context: Any) -> pb.DescribeJobResponse:
        return pb.DescribeJobResponse(job="the job")

    def WatchPlan(self, request: pb.WatchPlanRequest, context: Any) -> Iterator[pb.WatchPlanResponse]:
        if self.message is not None:
            yield self.message
        while context.is_active():
            time.sleep(0.02)


Start = Callable[[pb.WatchPlanResponse | None], tuple[Service, str]]


@pytest.fixture
def start() -> Iterator[Start]:
    servers = []

    def start(message: pb.WatchPlanResponse | None) -> tuple[Service, str]:
        server, service = grpc.server(ThreadPoolExecutor(4)), Service(message)
        control_pb2_grpc.add_ControlServicer_to_server(service, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return service, f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(0).wait()


class Raced(ControllerConnection):
    """Once `move` is set, the controller moves and the connection is reset just as thread `victim` is about to call."""

    move: Callable[[], Any] | None = None
    victim = "MainThread"

    def _open(self) -> SharedChannel:
        channel = super()._open()
        if self.move is not None and threading.current_thread().name == self.victim:
            self.move()
            self.move = None
            self.reset()
        return channel


def test_a_call_on_a_line_that_is_reset_fails_as_a_lost_connection_does(start: Start, tmp_path: Path) -> None:
    address = tmp_path / "controller.address"
    old, new = start(None), start(None)
    address.write_text(old[1])
    line = Raced(str(address), "token", Plug())
    line.move = lambda: address.write_text(new[1])
    with pytest.raises(ConnectionResetError):
        line.once("DescribeJob", pb.DescribeJobRequest())
    line.move = lambda: address.write_text(old[1])
    with pytest.raises(ConnectionResetError):
        next(line.watch("a/1"))
    line.move = lambda: address.write_text(new[1])
    assert line.call("DescribeJob", pb.DescribeJobRequest(), patience_seconds=WAIT_SECONDS).job == "the job"
    line.stop()


def test_a_channel_that_is_given_up_under_a_call_lives_until_the_call_has_ended(start: Start) -> None:
    shared = SharedChannel(open_channel(start(_fence(1))[1], "token"))
    with shared.use() as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        threading.Thread(target=shared.retire).start()
        with pytest.raises(ConnectionResetError):
            while True:
                with shared.use():
                    time.sleep(0.001)
        assert stub.DescribeJob(pb.DescribeJobRequest(), timeout=WAIT_SECONDS).job == "the job"
        stream = stub.WatchPlan(pb.WatchPlanRequest())
        assert next(stream).fence.reason == "told"
        with shared.cancelling(stream), pytest.raises(grpc.RpcError, match="CANCELLED"):
            next(stream)
    shared.retire()


def test_a_stream_ends_when_the_line_is_reset_though_its_controller_says_nothing(start: Start, tmp_path: Path) -> None:
    address = tmp_path / "controller.address"
    address.write_text(start(_fence(1))[1])
    line = ControllerConnection(str(address), "token", Plug())
    messages = line.watch("a/1")
    assert next(messages).fence.reason == "told"
    line.reset()  # the controller has not moved: nothing happens
    address.unlink()
    threading.Timer(0.05, line.reset).start()
    with pytest.raises(grpc.RpcError, match="CANCELLED"):
        next(messages)
    with pytest.raises(FileNotFoundError):
        line.once("DescribeJob", pb.DescribeJobRequest())


def _fence(counter: int) -> pb.WatchPlanResponse:
    return pb.WatchPlanResponse(fence=pb.FenceNotice(generation=plan_pb2.GenerationId(counter=counter), reason="told"))


class Listener:
    """A ControlClient that records the fences that it receives."""

    def __init__(self, address: Path) -> None:
        registration = pb.RegisterRequest(worker_id="a/1", pod_name="trainer-0")
        self.client = ControlClient(
            str(address), "token", registration, Mailbox("a/1"), pb.HeartbeatRequest, lambda *durable: None
        )
        self.client.on_fence = self._receive
        self.fences: list[int] = []
        self.faults = 0
        self.news = threading.Condition()

    def _receive(self, generation: GenerationId) -> None:
        with self.news:
            self.fences.append(generation.counter)
            self.news.notify_all()
        if self.faults:
            self.faults -= 1
            raise KeyError("a fault of ours")

    def start(self) -> None:
        self.client.register()
        self.client.start(lambda: ([], []))

    def receives(self, *fences: int) -> bool:
        with self.news:
            return self.news.wait_for(lambda: self.fences == list(fences), WAIT_SECONDS)


def test_a_successor_hears_what_was_about_to_be_told_before_it_knew_the_worker(start: Start, tmp_path: Path) -> None:
    """For example that a plan was entered: otherwise the next failure's answer takes the plan for one that nobody entered."""
    service, address = start(None)
    service.knows_nobody = True
    (tmp_path / "controller.address").write_text(address)
    listener = Listener(tmp_path / "controller.address")
    listener.client.entered_in_background(GenerationId(incarnation=1, counter=5), 0.1, 35)
    assert wait_for(lambda: service.entered == [35], "the successor hears of it")
    listener.client.stop()


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    monkeypatch.setattr("frostline_trainer.control.client.ControllerConnection", Raced)
    listener = Listener(tmp_path / "controller.address")
    yield listener
    listener.client.stop()


@pytest.mark.parametrize("victim", ["watch", "heartbeat"])
def test_a_worker_hears_and_is_heard_by_the_successor_whatever_it_was_about_to_call(
    victim: str, listener: Listener, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = tmp_path / "controller.address"
    (_, before), (successor, after) = start(None), start(_fence(2))
    address.write_text(before)
    monkeypatch.setattr(Raced, "victim", victim)
    monkeypatch.setattr(Raced, "move", lambda self: address.write_text(after))
    listener.start()
    assert listener.receives(2), "the watch thread is gone"
    successor.received.clear()
    assert successor.received.wait(WAIT_SECONDS), "the heartbeat thread is gone"


def test_each_registration_says_that_the_worker_wants_to_leave(listener: Listener, start: Start, tmp_path: Path) -> None:
    """The controller that was told may have died since: its successor learns of it where the worker registers there."""
    service, address = start(None)
    (tmp_path / "controller.address").write_text(address)
    listener.start()
    listener.client.leave_in_background("SIGTERM")
    listener.client.register()
    assert service.leaving == ["", "SIGTERM"]


def test_a_fault_in_a_thread_of_the_line_does_not_end_it(listener: Listener, start: Start, tmp_path: Path) -> None:
    (tmp_path / "controller.address").write_text(start(_fence(1))[1])
    listener.faults = 1
    listener.start()
    assert listener.receives(1, 1), "what was being delivered is not told again"


def test_an_outcome_is_handed_in_to_a_successor_that_has_not_heard_of_its_worker_yet(
    listener: Listener, start: Start, tmp_path: Path
) -> None:
    service, address = start(None)
    (tmp_path / "controller.address").write_text(address)
    service.knows_nobody = True
    listener.client.outcome(pb.RunOutcome(status="completed"))
    assert service.outcomes == ["completed"]


def test_heartbeats_go_on_when_the_controller_ends_their_stream(listener: Listener, start: Start, tmp_path: Path) -> None:
    service, address = start(None)
    service.answers = 2
    (tmp_path / "controller.address").write_text(address)
    listener.start()
    deadline = time.monotonic() + WAIT_SECONDS
    while service.streams < 3:
        assert time.monotonic() < deadline, f"{service.streams} streams"
        time.sleep(0.02)


def test_a_controller_that_answers_no_heartbeat_is_left_for_its_successor(
    listener: Listener, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller stands still and keeps its connections: only the missing answer shows that it is gone."""
    monkeypatch.setattr("frostline_trainer.control.client.CALL_SECONDS", 0.3)
    address = tmp_path / "controller.address"
    (stuck, before), (successor, after) = start(None), start(_fence(2))
    stuck.stuck = True
    address.write_text(before)
    listener.start()
    address.write_text(after)
    assert successor.received.wait(WAIT_SECONDS), "no heartbeat reached the successor"
    assert listener.receives(2), "the stream of the old controller was kept"


def test_answers_that_come_late_but_steadily_keep_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer takes longer than an interval, so one is always due: the controller is slow, not dead."""
    now = [100.0]
    monkeypatch.setattr("frostline_trainer.control.heartbeats.time", SimpleNamespace(monotonic=lambda: now[0]))

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            now[0] += timeout or 0.0
            return self.is_set()

    beats = Heartbeats(pb.HeartbeatRequest, Stopping(), lambda: 0.05, 0.5)
    stream = iter(beats)
    for number in range(20):
        next(stream)
        if number >= 2:
            beats.note_answer()
    with pytest.raises(TimeoutError, match=r"for 0\.5 s"):
        for _ in range(200):
            next(stream)
