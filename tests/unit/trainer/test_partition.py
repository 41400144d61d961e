"""A worker that is cut off: calls fail, answers are lost, a stream's messages come when the cut has healed."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import control_pb2_grpc
from frostline_rpc.channel import open_channel
from frostline_trainer.faults import partition
from frostline_trainer.faults.partition import CutOff, cut_off, through_partition


class Service(control_pb2_grpc.ControlServicer):
    """Answers Leave after it has called `received`; streams a message whenever `say` is set."""

    def __init__(self) -> None:
        self.left: list[str] = []
        self.steps: list[int] = []
        self.received: Callable[[], None] = lambda: None
        self.say = threading.Semaphore(0)

    def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveResponse:
        self.left.append(request.worker_id)
        self.received()
        return pb.LeaveResponse()

    def Heartbeats(self, requests: Iterator[pb.HeartbeatsRequest], context: Any) -> Iterator[pb.HeartbeatsResponse]:
        for request in requests:
            self.steps.append(request.heartbeat.step)
            yield pb.HeartbeatsResponse(heartbeat=pb.HeartbeatResponse(known=True, durable_step=request.heartbeat.step))

    def WatchPlan(self, request: pb.WatchPlanRequest, context: Any) -> Iterator[pb.WatchPlanResponse]:
        while context.is_active():
            if self.say.acquire(timeout=0.05):
                yield pb.WatchPlanResponse(end=pb.EndNotice(reason="said"))


@pytest.fixture
def service() -> Iterator[tuple[Service, str]]:
    server, answers = grpc.server(ThreadPoolExecutor(4)), Service()
    control_pb2_grpc.add_ControlServicer_to_server(answers, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield answers, f"127.0.0.1:{port}"
    server.stop(0).wait()


@pytest.fixture
def stub(service: tuple[Service, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[control_pb2_grpc.ControlStub]:
    monkeypatch.setenv("FROSTLINE_CUT", str(tmp_path / "cut"))
    with through_partition(open_channel(service[1], "token")) as channel:
        yield control_pb2_grpc.ControlStub(channel)


def test_a_call_passes_before_and_after_and_fails_while_cut_off(service: Any, stub: Any) -> None:
    stub.Leave(pb.LeaveRequest(worker_id="before"), timeout=60)
    cut_off(30.0)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Leave(pb.LeaveRequest(worker_id="within"), timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "cut off" in caught.value.details()
    cut_off(0.0)
    stub.Leave(pb.LeaveRequest(worker_id="after"), timeout=60)
    assert service[0].left == ["before", "after"]


def test_the_answer_of_a_call_under_way_is_lost_though_it_was_received(service: Any, stub: Any) -> None:
    service[0].received = lambda: cut_off(30.0)
    with pytest.raises(CutOff):
        stub.Leave(pb.LeaveRequest(worker_id="received"), timeout=60)
    assert service[0].left == ["received"]


def reader(stream: Any) -> tuple[list[float], list[BaseException]]:
    """Return the times at which messages came, and the error that ended the stream."""
    came: list[float] = []
    ended: list[BaseException] = []

    def read() -> None:
        try:
            for _ in stream:
                came.append(time.monotonic())
        except grpc.RpcError as error:
            ended.append(error)

    threading.Thread(target=read, daemon=True).start()
    return came, ended


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_streams_messages_are_held_back_until_the_cut_has_healed(service: Any, stub: Any) -> None:
    stream = stub.WatchPlan(pb.WatchPlanRequest(worker_id="w"))
    came, _ = reader(stream)
    service[0].say.release()
    until(lambda: len(came) == 1)
    healed = time.monotonic() + 0.4
    cut_off(0.4)
    service[0].say.release(2)
    until(lambda: len(came) == 3)
    assert min(came[1:]) >= healed - 0.02
    stream.cancel()


def test_a_stream_that_was_held_up_for_long_breaks(service: Any, stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "STREAM_SECONDS", 0.2)
    came, ended = reader(stub.WatchPlan(pb.WatchPlanRequest(worker_id="w")))
    cut_off(30.0)
    service[0].say.release()
    until(lambda: ended)
    assert isinstance(ended[0], CutOff)
    assert came == []
    with pytest.raises(CutOff):
        next(stub.WatchPlan(pb.WatchPlanRequest(worker_id="w")))


def test_nothing_stands_between_where_nothing_can_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FROSTLINE_CUT", raising=False)
    with open_channel("127.0.0.1:9", "token") as channel:
        assert through_partition(channel) is channel
        cut_off(5.0)
        assert not partition.is_cut_off()


def test_no_heartbeat_passes_while_cut_off_and_its_stream_ends(service: Any, stub: Any) -> None:
    sent = iter([1, 2, 3])

    def beats() -> Iterator[pb.HeartbeatsRequest]:
        for step in sent:
            if step == 2:
                until(lambda: service[0].steps)  # a broken stream loses the messages that are still on their way
                cut_off(30.0)
            yield pb.HeartbeatsRequest(heartbeat=pb.HeartbeatRequest(step=step))

    with pytest.raises(grpc.RpcError):
        list(stub.Heartbeats(beats()))
    assert service[0].steps == [1]
    with pytest.raises(grpc.RpcError):
        list(stub.Heartbeats(beats()))
    cut_off(0.0)
    assert [answer.heartbeat.durable_step for answer in stub.Heartbeats(beats())] == [3]
