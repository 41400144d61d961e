"""A gRPC server by the house's conventions: authenticated, errors mapped to status codes, messages bounded, health served."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from frostline_rpc.auth import Callers, authorise
from frostline_rpc.errors import DomainError
from frostline_rpc.tls import server_credentials

MESSAGE_BYTES_MAX = 32 * 1024 * 1024
"""Largest message: a garbage or hostile length is refused before it is read."""

OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
]
log = logging.getLogger(__name__)


class _Conventions(grpc.aio.ServerInterceptor):
    """Checks the caller and turns domain errors into status codes, for every method in one place."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler:
        handler = await continuation(details)
        if handler is None:
            return handler
        method = details.method.rsplit("/", 1)[-1]
        metadata = dict(details.invocation_metadata)

        async def unary(request: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                await authorise(self._callers, method, metadata)
                return await handler.unary_unary(request, context)
            except DomainError as error:
                await context.abort(error.code, str(error))

        async def stream(request: Any, context: grpc.aio.ServicerContext) -> Any:
            try:
                await authorise(self._callers, method, metadata)
                async for response in handler.unary_stream(request, context):
                    yield response
            except DomainError as error:
                await context.abort(error.code, str(error))

        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(unary, handler.request_deserializer, handler.response_serializer)
        return grpc.unary_stream_rpc_method_handler(stream, handler.request_deserializer, handler.response_serializer)


async def start_server(
    add_servicers: Callable[[grpc.aio.Server], None], host: str, port: int, callers: Callers
) -> tuple[Any, int]:
    """Start a server on host:port (0 chooses one). Returns it and its port. Raises OSError where the port is taken."""
    server = grpc.aio.server(interceptors=[_Conventions(callers)], options=OPTIONS)
    add_servicers(server)
    try:
        credentials = server_credentials()
        place = f"{host}:{port}"
        bound = server.add_secure_port(place, credentials) if credentials else server.add_insecure_port(place)
    except RuntimeError as error:
        raise OSError(f"{host}:{port} cannot be listened on ({error}); choose another port") from error
    await server.start()
    return server, bound
