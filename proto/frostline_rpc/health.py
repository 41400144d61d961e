"""The standard gRPC health service for probes, without TLS, on a port of its own that offers nothing else."""

from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

OVERALL = ""


async def serve_health(host: str, port: int) -> Any:
    """Start a server that answers SERVING. Returns the server, which the caller stops. Raises OSError where the port is taken."""
    servicer = health.aio.HealthServicer()
    server = grpc.aio.server()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    try:
        server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise OSError(f"{host}:{port} cannot be listened on ({error}); choose another port") from error
    await servicer.set(OVERALL, health_pb2.HealthCheckResponse.SERVING)
    await server.start()
    return server
