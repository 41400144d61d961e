"""The event loop of a server: one turn takes several of gRPC's finished operations, and no more than its bound."""

import asyncio
import gc
import selectors
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import grpc
import pytest

from frostline_proto.v1 import control_pb2, control_pb2_grpc
from frostline_rpc import event_loop
from frostline_rpc.event_loop import OPERATIONS_A_TURN, ServingLoop, run_serving

CALLS = 3 * OPERATIONS_A_TURN


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """What the tests' process holds is its own again."""
    yield
    gc.unfreeze()


class CountingSelector(selectors.DefaultSelector):
    turns = 0

    def select(self, timeout: float | None = None) -> Any:
        self.turns += 1
        return super().select(timeout)


class PollerCompletionQueue:
    """Registers as gRPC's does: a byte for each operation, one of them read in each call."""

    def __init__(self, selector: CountingSelector) -> None:
        self.reading, self.writing = socket.socketpair()
        self.selector, self.taken_in = selector, list[int]()

    def handle_events(self, loop: asyncio.AbstractEventLoop) -> None:
        assert loop is asyncio.get_running_loop()
        assert self.reading.recv(1)
        self.taken_in.append(self.selector.turns)


def test_a_turn_takes_what_is_there_up_to_its_bound() -> None:
    selector = CountingSelector()
    queue = PollerCompletionQueue(selector)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        queue.writing.send(b"1" * CALLS)
        loop.add_reader(queue.reading, partial(queue.handle_events, loop))
        async with asyncio.timeout(60):
            while len(queue.taken_in) < CALLS:
                await asyncio.sleep(0.001)
        loop.remove_reader(queue.reading)

    run_serving(run(), selector)
    assert [queue.taken_in.count(turn) for turn in sorted(set(queue.taken_in))] == [OPERATIONS_A_TURN] * 3
    queue.reading.close()
    queue.writing.close()


def test_grpcs_own_queue_is_known_and_calls_are_answered() -> None:
    """A release of gRPC that registers otherwise is seen here: its server would work, turn by turn."""

    class Servicer(control_pb2_grpc.ControlServicer):
        async def Heartbeat(self, request: Any, context: Any) -> control_pb2.HeartbeatResponse:
            return control_pb2.HeartbeatResponse(durable_step=request.step)

    several = 0

    class Loop(ServingLoop):
        def _add_reader(self, fd: Any, callback: Any, *args: Any) -> Any:
            nonlocal several
            several += callback.__name__ == "take_several" if hasattr(callback, "__name__") else 0
            return super()._add_reader(fd, callback, *args)

    async def run() -> list[int]:
        server = grpc.aio.server()
        control_pb2_grpc.add_ControlServicer_to_server(Servicer(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = control_pb2_grpc.ControlStub(channel)
            calls = [stub.Heartbeat(control_pb2.HeartbeatRequest(step=step), timeout=20) for step in range(CALLS)]
            steps = [(await call).durable_step for call in calls]
        await server.stop(0)
        return steps

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(run()) == list(range(CALLS))
    assert several >= 1


def test_what_start_up_made_is_left_alone_by_the_collector() -> None:
    async def frozen() -> int:
        return gc.get_freeze_count()

    assert run_serving(frozen()) > 1000


def test_the_oldest_objects_are_looked_at_by_the_clock_and_not_by_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full collection is a turn of a tenth of a second with a thousand callers; by count it comes in a busy moment."""

    def full_collections() -> int:
        return gc.get_stats()[2]["collections"]

    async def grow() -> int:
        before = full_collections()
        kept = [[number] for number in range(400_000)]
        return full_collections() - before + 0 * len(kept)

    async def wait_for_one() -> None:
        before = full_collections()
        while full_collections() == before:
            await asyncio.sleep(0.01)

    async def within(seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await wait_for_one()

    thresholds = gc.get_threshold()
    assert run_serving(grow()) == 0
    assert gc.get_threshold() == thresholds
    monkeypatch.setattr(event_loop, "FULL_COLLECTION_SECONDS", 0.05)
    run_serving(within(20))
