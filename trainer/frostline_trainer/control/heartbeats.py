"""A worker's heartbeats as one stream of requests, one in each interval, until a requested answer does not come in time."""

import threading
import time
from collections.abc import Callable, Iterator

from frostline_proto.v1 import control_pb2

ASK_SECONDS = 2.0
"""Time after an answer before the next is requested: answering costs the controller as much as receiving, and the answer, up to
where records are durable, is not urgent."""


class Heartbeats:
    """The iterator of heartbeat requests. gRPC iterates it in a thread of its own; the reader of answers calls `note_answer`.

    Args:
        snapshot: called for each heartbeat.
        stopping: ends the iteration when it is set.
        interval: called for the seconds between two heartbeats.
        patience: timeout of an answer, in seconds.
    """

    def __init__(
        self,
        snapshot: Callable[[], control_pb2.HeartbeatRequest],
        stopping: threading.Event,
        interval: Callable[[], float],
        patience: float,
    ) -> None:
        self._snapshot, self._stopping, self._interval, self._patience = snapshot, stopping, interval, patience
        self._asked_at: float | None = None
        self._answered_at = -ASK_SECONDS

    def note_answer(self) -> None:
        """Note an answer, requested or not: an older controller answers each heartbeat."""
        self._answered_at, self._asked_at = time.monotonic(), None

    def __iter__(self) -> Iterator[control_pb2.HeartbeatsRequest]:
        """Yield heartbeats. Raises TimeoutError, with which gRPC ends the stream, if the controller does not answer any more."""
        while not self._stopping.wait(self._interval()):
            now, asked_at = time.monotonic(), self._asked_at
            if asked_at is not None and now - asked_at > self._patience:
                raise TimeoutError(f"no heartbeat was answered for {self._patience:g} s")
            quiet = asked_at is not None or now - self._answered_at < ASK_SECONDS
            if not quiet:
                self._asked_at = now
            yield control_pb2.HeartbeatsRequest(heartbeat=self._snapshot(), quiet=quiet)
