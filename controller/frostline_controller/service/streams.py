"""The WatchPlan streams: one queue a worker, written by the reconciler, read by the worker's stream."""

import asyncio
import time
from collections.abc import Iterable

from frostline_proto.v1 import control_pb2 as pb

CLOSED = None
FLUSH_LOOK_SECONDS = 0.005

Announcement = pb.WatchPlanResponse | bytes
"""A message, or its serialized form: what goes to a thousand workers is serialized once."""


class Streams:
    """At most one stream a worker; a newer one closes the older."""

    def __init__(self) -> None:
        self._queues: dict[str, asyncio.Queue[bytes | None]] = {}

    def open(self, worker_id: str) -> asyncio.Queue[bytes | None]:
        older = self._queues.get(worker_id)
        if older is not None:
            older.put_nowait(CLOSED)
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._queues[worker_id] = queue
        return queue

    def close(self, worker_id: str, queue: asyncio.Queue[bytes | None]) -> bool:
        """Forget a stream that ended. True where it was the worker's newest."""
        if self._queues.get(worker_id) is not queue:
            return False
        del self._queues[worker_id]
        return True

    def close_all(self) -> None:
        for queue in self._queues.values():
            queue.put_nowait(CLOSED)

    def send(self, worker_id: str, message: Announcement) -> None:
        """To one worker; one that is not listening gets the whole state when it connects."""
        self.send_to((worker_id,), message)

    def send_all(self, message: Announcement) -> None:
        self.send_to(list(self._queues), message)

    def send_to(self, worker_ids: Iterable[str], message: Announcement) -> None:
        """The same to several workers."""
        serialized = message if isinstance(message, bytes) else message.SerializeToString()
        for worker_id in worker_ids:
            queue = self._queues.get(worker_id)
            if queue is not None:
                queue.put_nowait(serialized)

    async def flushed(self, seconds: float) -> None:
        """Until what was sent has gone on its way to all, but no longer than `seconds`: one may take nothing any more."""
        deadline = time.monotonic() + seconds
        while any(not queue.empty() for queue in self._queues.values()) and time.monotonic() < deadline:
            await asyncio.sleep(FLUSH_LOOK_SECONDS)

    def listening(self) -> list[str]:
        return list(self._queues)
