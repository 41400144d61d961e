"""gRPC servers: callers are authenticated, errors become status codes, message sizes are bounded, health checks are answered."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from frostline_rpc.auth import Callers, authorise, check_speaker
from frostline_rpc.errors import DomainError, InvalidRequest, TooLarge
from frostline_rpc.tls import server_credentials

MESSAGE_BYTES_MAX = 32 * 1024 * 1024
"""Bytes of the largest answer. A larger length, from garbage or an attacker, is refused before the message is read."""
REQUEST_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of the largest request that is received, and the limit of LARGE_REQUESTS; other methods' limit is SMALL_REQUEST_BYTES."""
SMALL_REQUEST_BYTES = 1024 * 1024
LARGE_REQUESTS = frozenset(("Register", "ReportRecords", "ReportStatistics", "ReportRecovery"))
"""Methods whose requests grow with the model, or with data gathered while no controller was reachable."""
CONCURRENT_CALLS_MAX = 16384
"""The most calls at one time, unless a server sets another limit; a worker has one stream and a few short calls."""
CONCURRENT_STREAMS_MAX = 256
"""The most calls at one time on one connection."""

OPTIONS = [
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_concurrent_streams", CONCURRENT_STREAMS_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),  # clients ping also where no call is under way
    ("grpc.so_reuseport", 0),
]
log = logging.getLogger(__name__)


class _Conventions(grpc.aio.ServerInterceptor):
    """Interceptor of all methods that authenticates the caller and turns domain errors into status codes.

    A caller is checked before its message is received, so that a stranger's message is neither held in memory nor parsed.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(details)
        if handler is None:
            return handler
        method = details.method.rsplit("/", 1)[-1]
        try:
            caller = await authorise(self._callers, method, dict(details.invocation_metadata))
        except DomainError as error:
            return _refusing(error)

        def read(message: bytes) -> Any:
            request = _parsed(method, message, handler.request_deserializer)
            check_speaker(caller, method, request)
            return request

        async def unary(message: bytes, context: grpc.aio.ServicerContext) -> Any:
            try:
                return await handler.unary_unary(read(message), context)
            except DomainError as error:
                await context.abort(error.code, str(error))

        async def stream(message: bytes, context: grpc.aio.ServicerContext) -> None:
            try:
                async for response in handler.unary_stream(read(message), context):
                    await context.write(response)
            except DomainError as error:
                await context.abort(error.code, str(error))

        async def conversation(_: Any, context: grpc.aio.ServicerContext) -> None:
            async def requests() -> AsyncIterator[Any]:
                while (message := await context.read()) is not grpc.aio.EOF:
                    yield read(message)

            try:
                async for response in handler.stream_stream(requests(), context):
                    await context.write(response)
            except DomainError as error:
                await context.abort(error.code, str(error))

        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(conversation, None, handler.response_serializer)
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(unary, None, handler.response_serializer)
        return grpc.unary_stream_rpc_method_handler(stream, None, _unless_serialized(handler.response_serializer))


def _unless_serialized(serialize: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    """A serializer that passes bytes through, so that a stream's message to many callers is serialized once."""
    return lambda response: response if isinstance(response, bytes) else serialize(response)


def _refusing(error: DomainError) -> grpc.RpcMethodHandler:
    """A handler that answers with the error. It receives no request of a stream."""

    async def refuse(requests: Any, context: grpc.aio.ServicerContext) -> None:
        await context.abort(error.code, str(error))

    return grpc.stream_unary_rpc_method_handler(refuse)


def _parsed(method: str, message: bytes, parse: Callable[[bytes], Any]) -> Any:
    """The parsed request. Raises TooLarge, or InvalidRequest where the bytes are no message of its type."""
    limit = REQUEST_BYTES_MAX if method in LARGE_REQUESTS else SMALL_REQUEST_BYTES
    if len(message) > limit:
        raise TooLarge(f"{method}: the request has {len(message)} bytes; at most {limit} are taken")
    try:
        return parse(message)
    except DecodeError as error:
        raise InvalidRequest(f"{method}: the request is no message of its type: {error}") from None


async def start_server(
    add_servicers: Callable[[grpc.aio.Server], None], host: str, port: int, callers: Callers,
    concurrent_calls_max: int = CONCURRENT_CALLS_MAX,
) -> tuple[Any, int]:  # fmt: skip
    """Start a server; return it and its port.

    Args:
        add_servicers: adds the services to the server before it starts.
        host, port: the address to listen on; port 0 chooses a free one.
        callers: identifies the caller of each call by its token.
        concurrent_calls_max: further calls at the same time are answered with RESOURCE_EXHAUSTED.

    Raises:
        OSError: the port is taken.
    """
    server = grpc.aio.server(interceptors=[_Conventions(callers)], options=OPTIONS, maximum_concurrent_rpcs=concurrent_calls_max)
    add_servicers(server)
    try:
        credentials = server_credentials()
        place = f"{host}:{port}"
        bound = server.add_secure_port(place, credentials) if credentials else server.add_insecure_port(place)
    except RuntimeError as error:
        raise OSError(f"{host}:{port} cannot be listened on ({error}); choose another port") from error
    await server.start()
    return server, bound
