"""A worker's heartbeats as one stream of requests: one an interval, until an answer that was asked for does not come in time."""

import threading
import time
from collections.abc import Callable, Iterator

from frostline_proto.v1 import control_pb2

ASK_SECONDS = 2.0
"""After an answer the next is asked for so much later: to answer is as much work for the controller as to listen, and what it
says, up to where records are safe, is not urgent."""


class Heartbeats:
    """Iterated by gRPC in a thread of its own; `note_answer` is called by whoever reads the answers.

    snapshot(): what to say. interval(): seconds between two. patience: seconds that an answer may take.
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
        """Also one that was not asked for: an older controller answers each."""
        self._answered_at, self._asked_at = time.monotonic(), None

    def __iter__(self) -> Iterator[control_pb2.HeartbeatsRequest]:
        """Raises TimeoutError, with which gRPC ends the stream, where nobody answers: that controller is not there any more."""
        while not self._stopping.wait(self._interval()):
            now, asked_at = time.monotonic(), self._asked_at
            if asked_at is not None and now - asked_at > self._patience:
                raise TimeoutError(f"no heartbeat was answered for {self._patience:g} s")
            quiet = asked_at is not None or now - self._answered_at < ASK_SECONDS
            if not quiet:
                self._asked_at = now
            yield control_pb2.HeartbeatsRequest(heartbeat=self._snapshot(), quiet=quiet)
