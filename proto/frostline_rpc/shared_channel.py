"""A client channel that several threads call through, and that any of them may give up."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc


class SharedChannel:
    """Closed when it is retired and the last call on it has ended; until then it is left alone.

    A gRPC channel must not be closed while another thread is about to call: the call raises ValueError, or takes the whole
    process down with a segmentation fault (seen with grpcio 1.78).
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._users = 0
        self._streams: list[Any] = []
        self._retired = False

    @contextmanager
    def use(self) -> Iterator[grpc.Channel]:
        """The channel, for one call. Raises ConnectionResetError where it has been retired."""
        with self._lock:
            if self._retired:
                raise ConnectionResetError("the connection was given up as a call began")
            self._users += 1
        try:
            yield self._channel
        finally:
            with self._lock:
                self._users -= 1
                last = self._retired and not self._users
            if last:
                self._channel.close()

    @contextmanager
    def cancelling(self, stream: Any) -> Iterator[Any]:
        """A call that has no deadline: cancelled when the channel is retired, which it would keep open for ever."""
        with self._lock:
            self._streams.append(stream)
            late = self._retired
        if late:
            stream.cancel()
        try:
            yield stream
        finally:
            with self._lock:
                self._streams.remove(stream)

    def retire(self) -> None:
        """Begin no call on it any more. Calls with a deadline may end, streams are cancelled. Idempotent."""
        with self._lock:
            idle = not self._retired and not self._users
            self._retired = True
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        if idle:
            self._channel.close()
