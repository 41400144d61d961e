"""The standard health service on a port of its own, in plain text: what probes ask, and all that can be asked there."""

from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

OVERALL = ""


async def serve_health(host: str, port: int) -> Any:
    """A started server that says SERVING. The caller stops it. Raises OSError where the port is taken."""
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
