"""The WatchPlan streams: one queue a worker, written by the reconciler, read by the worker's stream."""

import asyncio

from frostline_proto.v1 import control_pb2 as pb

CLOSED = None


class Streams:
    """At most one stream a worker; a newer one closes the older."""

    def __init__(self) -> None:
        self._queues: dict[str, asyncio.Queue[pb.WatchPlanResponse | None]] = {}

    def open(self, worker_id: str) -> asyncio.Queue[pb.WatchPlanResponse | None]:
        older = self._queues.get(worker_id)
        if older is not None:
            older.put_nowait(CLOSED)
        queue: asyncio.Queue[pb.WatchPlanResponse | None] = asyncio.Queue()
        self._queues[worker_id] = queue
        return queue

    def close(self, worker_id: str, queue: asyncio.Queue[pb.WatchPlanResponse | None]) -> bool:
        """Forget a stream that ended. True where it was the worker's newest."""
        if self._queues.get(worker_id) is not queue:
            return False
        del self._queues[worker_id]
        return True

    def close_all(self) -> None:
        for queue in self._queues.values():
            queue.put_nowait(CLOSED)

    def send(self, worker_id: str, message: pb.WatchPlanResponse) -> None:
        """To one worker; one that is not listening gets the whole state when it connects."""
        queue = self._queues.get(worker_id)
        if queue is not None:
            queue.put_nowait(message)

    def send_all(self, message: pb.WatchPlanResponse) -> None:
        for worker_id in list(self._queues):
            self.send(worker_id, message)

    def listening(self) -> list[str]:
        return list(self._queues)
