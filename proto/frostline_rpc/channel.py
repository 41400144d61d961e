"""gRPC client channels: a token on every call, keepalive, retry of UNAVAILABLE on idempotent calls only.

`SharedChannel` is used by several threads, each of which may close it.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from frostline_rpc.current_text import current_text
from frostline_rpc.server import MESSAGE_BYTES_MAX
from frostline_rpc.tls import SERVER_NAME, channel_credentials

IDEMPOTENT = [
    "DescribeJob",
    "Register",
    "Heartbeat",
    "ReportStatistics",
    "ReportRecords",
    "Ready",
    "ReportRecovery",
    "Status",
    "DescribeShards",
]
SERVICES = ("frostline.v1.Control", "frostline.v1.CacheControl")

_RETRY = {
    "methodConfig": [
        {
            "name": [{"service": service, "method": method} for service in SERVICES for method in IDEMPOTENT],
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}

OPTIONS = [
    ("grpc.service_config", json.dumps(_RETRY)),
    ("grpc.enable_retries", 1),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
]


class _Token(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor, grpc.StreamStreamClientInterceptor):
    """Interceptor that sends the process's token with every call.

    Args:
        token: the token or a file's path. The file is read at each call, since a kubelet renews it.
    """

    def __init__(self, token: str) -> None:
        self._token = token

    def _with_token(self, details: Any) -> Any:
        header = ("authorization", f"Bearer {current_text(self._token)}")
        return details._replace(metadata=[*(details.metadata or []), header])

    def intercept_unary_unary(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._with_token(details), request)

    def intercept_unary_stream(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        return continuation(self._with_token(details), request)

    def intercept_stream_stream(self, continuation: Callable[..., Any], details: Any, requests: Any) -> Any:
        return continuation(self._with_token(details), requests)


def open_channel(address: str, token: str) -> grpc.Channel:
    """A blocking channel to host:port that sends `token` (or the content of the file that it names) with every call.

    The caller closes the channel. Calls raise OSError where the file cannot be read.
    """
    credentials = channel_credentials()
    if credentials is None:
        return grpc.intercept_channel(grpc.insecure_channel(address, OPTIONS), _Token(token))
    options = [*OPTIONS, ("grpc.ssl_target_name_override", SERVER_NAME)]
    return grpc.intercept_channel(grpc.secure_channel(address, credentials, options), _Token(token))


class SharedChannel:
    """A gRPC channel that several threads use. It is closed once it is retired and the last call on it has ended.

    It is not closed earlier because a call that another thread is about to make on a closed channel raises ValueError, or ends
    the process with a segmentation fault (seen with grpcio 1.78).
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
        """Cancel a call that has no deadline when the channel is retired; the call would keep the channel open for ever."""
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
        """Allow no new calls. Calls with a deadline may finish, streams are cancelled. Idempotent."""
        with self._lock:
            idle = not self._retired and not self._users
            self._retired = True
            streams = list(self._streams)
        for stream in streams:
            stream.cancel()
        if idle:
            self._channel.close()


def error_text(error: grpc.RpcError) -> str:
    """One line for people: code and detail."""
    return f"{error.code().name}: {error.details()}"
