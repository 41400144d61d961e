"""The conventions of every server and channel, over real sockets: roles, status codes, sizes, retries."""

import asyncio
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from frostline_proto.v1 import control_pb2, control_pb2_grpc
from frostline_rpc.auth import CONTROLLER, OPERATOR, WORKER, Tokens
from frostline_rpc.channel import error_text, open_channel
from frostline_rpc.errors import DomainError, InvalidRequest, NotLeading, Refused, StaleGeneration
from frostline_rpc.server import (
    CONCURRENT_CALLS_MAX,
    MESSAGE_BYTES_MAX,
    REQUEST_BYTES_MAX,
    SMALL_REQUEST_BYTES,
    start_server,
)

FAULTS: dict[str, Exception] = {
    "stale": StaleGeneration("generation 1.2 is over; the newest is 1.3"),
    "invalid": InvalidRequest("Plan.start is 'sideways'"),
    "refused": Refused("the run is suspended; resume it first"),
    "domain": DomainError("anything else of ours"),
    "bug": KeyError("a bug"),
}


class Servicer(control_pb2_grpc.ControlServicer):
    """Answers with what the test planted. heartbeats, leaves: calls that arrived. not_leading: calls to refuse first."""

    def __init__(self) -> None:
        self.heartbeats = 0
        self.leaves = 0
        self.not_leading = 0

    async def Heartbeat(self, request: Any, context: Any) -> control_pb2.HeartbeatResponse:
        self.heartbeats += 1
        if self.heartbeats <= self.not_leading:
            raise NotLeading("another controller leads")
        if request.worker_id in FAULTS:
            raise FAULTS[request.worker_id]
        return control_pb2.HeartbeatResponse(durable_step=request.step, known=True)

    async def Heartbeats(self, requests: Any, context: Any) -> Any:
        async for request in requests:
            yield control_pb2.HeartbeatsResponse(heartbeat=await self.Heartbeat(request.heartbeat, context))

    async def Leave(self, request: Any, context: Any) -> control_pb2.LeaveResponse:
        self.leaves += 1
        raise NotLeading("another controller leads")

    async def Status(self, request: Any, context: Any) -> control_pb2.StatusResponse:
        return control_pb2.StatusResponse(name="r", message="x" * (MESSAGE_BYTES_MAX + 1))

    async def WatchPlan(self, request: Any, context: Any) -> Any:
        yield control_pb2.WatchPlanResponse(end=control_pb2.EndNotice(reason="first"))
        if request.worker_id == "waits":
            await asyncio.sleep(60)
        if request.worker_id == "stale":
            raise FAULTS["stale"]
        yield control_pb2.WatchPlanResponse(end=control_pb2.EndNotice(reason="second"))


class Running:
    """A server in a thread with an event loop of its own."""

    def __init__(self, concurrent_calls_max: int = CONCURRENT_CALLS_MAX) -> None:
        self.servicer, self._calls_max = Servicer(), concurrent_calls_max
        self.tokens = Tokens.create()
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def on_loop(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def start(self) -> None:
        add = control_pb2_grpc.add_ControlServicer_to_server
        starting = start_server(lambda s: add(self.servicer, s), "127.0.0.1", self.port, self.tokens, self._calls_max)
        self.server, self.port = self.on_loop(starting)

    def stop(self) -> None:
        self.on_loop(self.server.stop(0))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


@pytest.fixture
def running() -> Iterator[Running]:
    running = Running()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def stub(running: Running) -> Iterator[control_pb2_grpc.ControlStub]:
    with open_channel(f"127.0.0.1:{running.port}", running.tokens.by_role[WORKER]) as channel:
        yield control_pb2_grpc.ControlStub(channel)


def heartbeat(worker_id: str = "w", step: int = 5) -> control_pb2.HeartbeatRequest:
    return control_pb2.HeartbeatRequest(worker_id=worker_id, step=step)


def call_as_worker(stub: control_pb2_grpc.ControlStub, method: str) -> None:
    if method == "Heartbeat":
        stub.Heartbeat(heartbeat(), timeout=60)
    else:
        list(stub.WatchPlan(control_pb2.WatchPlanRequest(worker_id="w"), timeout=60))


def test_a_worker_is_answered(stub: control_pb2_grpc.ControlStub) -> None:
    assert stub.Heartbeat(heartbeat(), timeout=60).durable_step == 5
    answers = [response.end.reason for response in stub.WatchPlan(control_pb2.WatchPlanRequest(worker_id="w"), timeout=60)]
    assert answers == ["first", "second"]


@pytest.mark.parametrize("header", [None, "", "Bearer ", "Bearer wrong", "Basic {token}", "{token}", "Bearer {token}x"])
def test_a_wrong_token_is_unauthenticated(running: Running, header: str | None) -> None:
    value = None if header is None else header.format(token=running.tokens.by_role[WORKER])
    metadata = [] if value is None else [("authorization", value)]
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel, pytest.raises(grpc.RpcError) as caught:
        control_pb2_grpc.ControlStub(channel).Heartbeat(heartbeat(), timeout=60, metadata=metadata)
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "wrong or missing token" in caught.value.details()
    assert running.servicer.heartbeats == 0


@pytest.mark.parametrize("method", ["Heartbeat", "WatchPlan"])
@pytest.mark.parametrize("role", [OPERATOR, CONTROLLER])
def test_a_role_may_do_only_its_part(running: Running, role: str, method: str) -> None:
    with (
        open_channel(f"127.0.0.1:{running.port}", running.tokens.by_role[role]) as channel,
        pytest.raises(grpc.RpcError) as caught,
    ):
        call_as_worker(control_pb2_grpc.ControlStub(channel), method)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    assert caught.value.details() == f"{method}: role {role} may not call it; allowed: worker"


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        ("stale", grpc.StatusCode.ABORTED),
        ("invalid", grpc.StatusCode.INVALID_ARGUMENT),
        ("refused", grpc.StatusCode.FAILED_PRECONDITION),
        ("domain", grpc.StatusCode.INTERNAL),
    ],
)
def test_domain_errors_become_status_codes(
    running: Running, stub: control_pb2_grpc.ControlStub, fault: str, code: grpc.StatusCode
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Heartbeat(heartbeat(fault), timeout=60)
    assert caught.value.code() is code
    assert error_text(caught.value) == f"{code.name}: {FAULTS[fault]}"
    assert running.servicer.heartbeats == 1, "only UNAVAILABLE is retried"


def test_a_bug_is_no_domain_error(running: Running, stub: control_pb2_grpc.ControlStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Heartbeat(heartbeat("bug"), timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    assert stub.Heartbeat(heartbeat(), timeout=60).known, "the server goes on"


def test_an_error_within_a_stream_keeps_what_came_before(stub: control_pb2_grpc.ControlStub) -> None:
    seen = []
    with pytest.raises(grpc.RpcError) as caught:
        for response in stub.WatchPlan(control_pb2.WatchPlanRequest(worker_id="stale"), timeout=60):
            seen.append(response.end.reason)
    assert seen == ["first"]
    assert caught.value.code() is grpc.StatusCode.ABORTED


def test_unavailable_is_retried_on_idempotent_calls_only(running: Running, stub: control_pb2_grpc.ControlStub) -> None:
    running.servicer.not_leading = 2
    assert stub.Heartbeat(heartbeat(), timeout=60).known
    assert running.servicer.heartbeats == 3
    with pytest.raises(grpc.RpcError) as caught:
        stub.Leave(control_pb2.LeaveRequest(worker_id="w"), timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert running.servicer.leaves == 1


def sent(running: Running, method: str, body: bytes, token: str) -> grpc.RpcError:
    """How the server refuses these bytes."""
    options = [("grpc.max_send_message_length", -1)]
    with grpc.insecure_channel(f"127.0.0.1:{running.port}", options) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary(f"/frostline.v1.Control/{method}")(body, timeout=60, metadata=[("authorization", f"Bearer {token}")])
    return caught.value


@pytest.mark.parametrize(("method", "limit"), [("Heartbeat", SMALL_REQUEST_BYTES), ("Register", REQUEST_BYTES_MAX)])
def test_oversized_requests_are_refused(running: Running, method: str, limit: int) -> None:
    token = running.tokens.by_role[WORKER]
    body = heartbeat("w" * limit).SerializeToString()
    assert sent(running, method, body, token).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert running.servicer.heartbeats == 0


def test_oversized_answers_are_refused(stub: control_pb2_grpc.ControlStub) -> None:
    with pytest.raises(grpc.RpcError) as answer:
        stub.Status(control_pb2.StatusRequest(), timeout=60)
    assert answer.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_what_a_stranger_sends_is_not_received(running: Running) -> None:
    """It is told so before a byte of its message was asked for: a stranger's messages must not fill the server's memory."""
    refusal = sent(running, "Heartbeat", b"x" * (4 * REQUEST_BYTES_MAX), "wrong")
    assert refusal.code() is grpc.StatusCode.UNAUTHENTICATED, "a message of this size would have been refused for its size"


def test_calls_at_once_are_bounded() -> None:
    running = Running(concurrent_calls_max=2)
    running.start()
    with open_channel(f"127.0.0.1:{running.port}", running.tokens.by_role[WORKER]) as channel:
        stub = control_pb2_grpc.ControlStub(channel)
        waiting = [stub.WatchPlan(control_pb2.WatchPlanRequest(worker_id="waits")) for _ in range(2)]
        assert [next(stream).end.reason for stream in waiting] == ["first"] * 2
        with pytest.raises(grpc.RpcError) as caught:
            stub.Heartbeat(heartbeat(), timeout=60)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for stream in waiting:
            stream.cancel()
    running.stop()


def test_garbage_does_not_stop_the_server(running: Running, stub: control_pb2_grpc.ControlStub) -> None:
    for junk in (b"\x00" * 4096, b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 512):
        with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:
            connection.sendall(junk)
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel, pytest.raises(grpc.RpcError) as caught:
        call = channel.unary_unary("/frostline.v1.Control/Heartbeat")
        call(b"\xff\xff\xff", timeout=60, metadata=[("authorization", f"Bearer {running.tokens.by_role[WORKER]}")])
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert stub.Heartbeat(heartbeat(), timeout=60).known


def test_an_unknown_method_is_unimplemented(running: Running) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/frostline.v1.Control/Melt")(b"", timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_an_occupied_port_is_a_clear_error(running: Running) -> None:
    with pytest.raises(OSError, match=rf"127\.0\.0\.1:{running.port} cannot be listened on .*choose another port"):
        running.on_loop(start_server(lambda server: None, "127.0.0.1", running.port, running.tokens))


def test_a_server_that_comes_back_is_found_again(running: Running, stub: control_pb2_grpc.ControlStub) -> None:
    assert stub.Heartbeat(heartbeat(), timeout=60).known
    running.on_loop(running.server.stop(0))
    with pytest.raises(grpc.RpcError) as caught:
        stub.Heartbeat(heartbeat(), timeout=60)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    running.start()
    assert stub.Heartbeat(heartbeat(), timeout=60, wait_for_ready=True).known


def test_tokens_are_private_and_read_back(tmp_path: Path) -> None:
    tokens = Tokens.create()
    path = tmp_path / "tokens.json"
    path.write_text("old")
    path.chmod(0o644)
    tokens.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Tokens.read(path) == tokens
    assert len(set(tokens.by_role.values())) == 3
    assert {asyncio.run(tokens.identify(token)).role for token in tokens.by_role.values()} == {WORKER, OPERATOR, CONTROLLER}
    assert asyncio.run(tokens.identify("")) is None


@pytest.mark.parametrize("token", ["ü" * 32, "\ud800", "\x00"])
def test_a_token_that_is_no_ascii_is_nobodys(token: str) -> None:
    assert asyncio.run(Tokens.create().identify(token)) is None


def talk(stub: control_pb2_grpc.ControlStub, *worker_ids: str, **fields: Any) -> list[int]:
    """The durable steps that a stream of heartbeats is answered with."""
    requests = [control_pb2.HeartbeatsRequest(heartbeat=heartbeat(one, step)) for step, one in enumerate(worker_ids)]
    return [answer.heartbeat.durable_step for answer in stub.Heartbeats(iter(requests), timeout=60, **fields)]


def test_each_message_of_a_conversation_is_answered(stub: control_pb2_grpc.ControlStub) -> None:
    assert talk(stub, "w", "w", "w") == [0, 1, 2]


@pytest.mark.parametrize("role", [None, OPERATOR, CONTROLLER])
def test_a_conversation_is_for_those_who_may_call_it(running: Running, role: str | None) -> None:
    metadata = [("authorization", f"Bearer {running.tokens.by_role[role]}")] if role else []
    with grpc.insecure_channel(f"127.0.0.1:{running.port}") as channel, pytest.raises(grpc.RpcError) as caught:
        talk(control_pb2_grpc.ControlStub(channel), "w", metadata=metadata)
    assert caught.value.code() is (grpc.StatusCode.PERMISSION_DENIED if role else grpc.StatusCode.UNAUTHENTICATED)
    assert running.servicer.heartbeats == 0


def test_a_domain_error_ends_a_conversation(running: Running, stub: control_pb2_grpc.ControlStub) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        talk(stub, "w", "stale", "w")
    assert caught.value.code() is grpc.StatusCode.ABORTED
    assert running.servicer.heartbeats == 2
