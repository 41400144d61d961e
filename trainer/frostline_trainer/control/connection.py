"""The connection to the controller: one gRPC channel, reopened if the controller has moved; calls wait for its return, and
reports are divided by the size that the controller takes."""

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from frostline_proto.v1 import control_pb2, control_pb2_grpc
from frostline_rpc.channel import SharedChannel, open_channel
from frostline_rpc.current_text import current_text
from frostline_trainer.process.plug import Plug

CALL_SECONDS = 5.0
RETRY_SECONDS = 0.2
FINAL_ERRORS = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED,
                grpc.StatusCode.INVALID_ARGUMENT)  # fmt: skip
RECORDS_A_REPORT = 200
BYTES_A_REPORT = 4 << 20
"""Bytes of a report's records or statistics: the controller takes twice as much in one request."""

M = TypeVar("M", bound=Message)


class Refused(Exception):
    """The controller refuses this worker, for the reason in the text."""

    @property
    def unknown_worker(self) -> bool:
        """Whether the controller just does not know this worker, as after its restart, so that the worker may register again."""
        cause = self.__cause__
        return isinstance(cause, grpc.RpcError) and cause.code() == grpc.StatusCode.FAILED_PRECONDITION


class ControllerConnection:
    """The worker's gRPC connection to the controller, made again whenever it breaks. Callable from any thread.

    Args:
        controller: host:port, or the path of a file that holds it, which is read again at every reconnect.
        token: the worker's token, or the path of a file that holds it, which is read in the same way.
        plug: hook for planned faults.

    Attributes:
        stopping: set by `stop`.
    """

    def __init__(self, controller: str, token: str, plug: Plug) -> None:
        self._controller, self._token, self._plug = controller, token, plug
        self._lock = threading.Lock()
        self._channel: SharedChannel | None = None
        self._address = ""
        self.stopping = threading.Event()

    def once(self, method: str, request: Any, timeout: float = CALL_SECONDS) -> Any:
        """Make one call. Raises grpc.RpcError, or OSError without a controller's address or during a reset."""
        with self._open().use() as channel:
            return getattr(control_pb2_grpc.ControlStub(channel), method)(request, timeout=timeout)

    def watch(self, worker_id: str) -> Iterator[control_pb2.WatchPlanResponse]:
        """The controller's messages until the stream ends. Raises as `once` does."""
        shared = self._open()
        with shared.use() as channel:
            stream = control_pb2_grpc.ControlStub(channel).WatchPlan(control_pb2.WatchPlanRequest(worker_id=worker_id))
            with shared.cancelling(stream):
                yield from stream

    def heartbeats(self, requests: Iterator[control_pb2.HeartbeatsRequest]) -> Iterator[control_pb2.HeartbeatsResponse]:
        """The answers to `requests`, which gRPC takes in a thread of its own, until the stream ends. Raises as `once` does."""
        shared = self._open()
        with shared.use() as channel:
            stream = control_pb2_grpc.ControlStub(channel).Heartbeats(requests)
            with shared.cancelling(stream):
                yield from stream

    def call(self, method: str, request: Any, patience_seconds: float = 60.0) -> Any:
        """Call until it is answered. Raises Refused if the controller refuses, TimeoutError after `patience_seconds`."""
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                return self.once(method, request)
            except (grpc.RpcError, OSError) as error:
                code = error.code() if isinstance(error, grpc.RpcError) else None
                if code in FINAL_ERRORS or code == grpc.StatusCode.ABORTED:
                    raise Refused(f"{method}: {error.details()}") from error
                if time.monotonic() > deadline or self.stopping.is_set():
                    raise TimeoutError(f"{method} was not answered within {patience_seconds:.0f} s") from error
                time.sleep(RETRY_SECONDS)
                self.reset()

    def reset(self) -> None:
        """Close the channel, because the controller has moved or this connection ends."""
        with self._lock:
            if self._channel is not None and (self.stopping.is_set() or self._moved()):
                self._channel.retire()
                self._channel = None

    def _open(self) -> SharedChannel:
        with self._lock:
            if self._channel is None:
                self._address = current_text(self._controller)
                self._channel = SharedChannel(self._plug.channel(open_channel(self._address, self._token)))
            return self._channel

    def _moved(self) -> bool:
        try:
            return current_text(self._controller) != self._address
        except OSError:
            return True

    def stop(self) -> None:
        """Close the connection for good; a call that is not answered yet raises TimeoutError."""
        self.stopping.set()
        self.reset()


def portions(messages: Iterable[M]) -> Iterator[list[M]]:
    """The messages in lists that fit a report by number and by bytes, in order; one that is too large goes alone."""
    some, size = list[M](), 0
    for message in messages:
        more = message.ByteSize()
        if some and (len(some) == RECORDS_A_REPORT or size + more > BYTES_A_REPORT):
            yield some
            some, size = [], 0
        some.append(message)
        size += more
    if some:
        yield some
