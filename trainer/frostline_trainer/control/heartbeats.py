"""A worker's heartbeats as one stream of requests: one an interval, until one is not answered in time."""

import threading
import time
from collections.abc import Callable, Iterator

from frostline_proto.v1 import control_pb2


class Heartbeats:
    """Iterated by gRPC in a thread of its own; `note_answer` is called by whoever reads the answers.

    snapshot(): what to say. interval(): seconds between two. patience: seconds without any answer, while one is due.
    """

    def __init__(
        self,
        snapshot: Callable[[], control_pb2.HeartbeatRequest],
        stopping: threading.Event,
        interval: Callable[[], float],
        patience: float,
    ) -> None:
        self._snapshot, self._stopping, self._interval, self._patience = snapshot, stopping, interval, patience
        self._sent = self._answered = self._seen = 0
        self._moved_at = 0.0

    def note_answer(self) -> None:
        self._answered += 1

    def __iter__(self) -> Iterator[control_pb2.HeartbeatsRequest]:
        """Raises TimeoutError, with which gRPC ends the stream, where nobody answers: that controller is not there any more."""
        while not self._stopping.wait(self._interval()):
            now = time.monotonic()
            answered = self._answered
            if answered != self._seen or answered == self._sent:
                self._seen, self._moved_at = answered, now
            elif now - self._moved_at > self._patience:
                raise TimeoutError(f"no heartbeat was answered for {self._patience:g} s")
            self._sent += 1
            yield control_pb2.HeartbeatsRequest(heartbeat=self._snapshot())
