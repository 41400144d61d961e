"""The WatchPlan streams: one queue of messages for each worker, filled by the reconciler and emptied by the worker's stream.

A message to a thousand workers at once would take one long turn of the event loop, in which no call is answered. So each turn
wakes only a few streams, in the order in which messages came to them.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable

from frostline_proto.v1 import control_pb2 as pb

CLOSED = None
FLUSH_LOOK_SECONDS = 0.005
WOKEN_A_TURN = 32

Announcement = pb.WatchPlanResponse | bytes
"""A message, or its serialized form: a message for a thousand workers is serialized once."""


class StreamQueue:
    """The messages that one stream has still to send, in order. It has one reader."""

    def __init__(self) -> None:
        self._messages: deque[bytes | None] = deque()
        self._reader: asyncio.Future[None] | None = None

    def put(self, message: bytes | None) -> bool:
        """Append a message. Returns whether the queue was empty: then the reader may be waiting, and must be woken."""
        self._messages.append(message)
        return len(self._messages) == 1

    def wake(self) -> None:
        """Wake the reader after `put`. Called for a few streams in each turn of the event loop."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def get(self) -> bytes | None:
        """Wait for the next message and return it; None: the stream has to end."""
        while not self._messages:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._messages.popleft()

    def empty(self) -> bool:
        """Whether no message is left."""
        return not self._messages


class Streams:
    """All streams, at most one for each worker; a newer one closes the older."""

    def __init__(self) -> None:
        self._queues: dict[str, StreamQueue] = {}
        self._to_wake: deque[StreamQueue] = deque()

    def open(self, worker_id: str) -> StreamQueue:
        """Open a stream for a worker. An older stream of this worker ends."""
        self.end(worker_id)
        queue = self._queues[worker_id] = StreamQueue()
        return queue

    def end(self, worker_id: str) -> None:
        """End a worker's stream, if it has one: a worker that was given up and registers again opens another, which begins with
        all that is in force."""
        older = self._queues.pop(worker_id, None)
        if older is not None:
            self._put(older, CLOSED)

    def close(self, worker_id: str, queue: StreamQueue) -> bool:
        """Remove a stream that has ended. Returns whether it was the worker's newest."""
        if self._queues.get(worker_id) is not queue:
            return False
        del self._queues[worker_id]
        return True

    def close_all(self) -> None:
        """End all streams, after the messages that they have still to send."""
        for queue in self._queues.values():
            self._put(queue, CLOSED)

    def send(self, worker_id: str, message: Announcement) -> None:
        """Send a message to one worker. A worker without a stream receives the whole state when it connects (`welcome`)."""
        self.send_to((worker_id,), message)

    def send_all(self, message: Announcement) -> None:
        """Send one message to every worker that has a stream."""
        self.send_to(list(self._queues), message)

    def send_to(self, worker_ids: Iterable[str], message: Announcement) -> None:
        """Send one message to several workers."""
        serialized = message if isinstance(message, bytes) else message.SerializeToString()
        for worker_id in worker_ids:
            queue = self._queues.get(worker_id)
            if queue is not None:
                self._put(queue, serialized)

    async def flushed(self, seconds: float) -> None:
        """Wait until all queues are empty, at most `seconds`: a worker may have stopped reading."""
        deadline = time.monotonic() + seconds
        while any(not queue.empty() for queue in self._queues.values()) and time.monotonic() < deadline:
            await asyncio.sleep(FLUSH_LOOK_SECONDS)

    def listening(self) -> list[str]:
        """Ids of the workers that have a stream."""
        return list(self._queues)

    def _put(self, queue: StreamQueue, message: bytes | None) -> None:
        if not queue.put(message):
            return
        self._to_wake.append(queue)
        if len(self._to_wake) == 1:
            asyncio.get_running_loop().call_soon(self._wake_some)

    def _wake_some(self) -> None:
        for _ in range(min(WOKEN_A_TURN, len(self._to_wake))):
            self._to_wake.popleft().wake()
        if self._to_wake:
            asyncio.get_running_loop().call_soon(self._wake_some)
