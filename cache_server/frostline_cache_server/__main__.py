"""`python -m frostline_cache_server`: the control plane of the activation cache, until SIGTERM."""

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from frostline_cache_server.boundaries import Boundaries
from frostline_cache_server.logs import set_up_logs
from frostline_cache_server.service import CacheControl
from frostline_cache_server.shards import ShardMap, parse_addresses
from frostline_cache_server.sweeper import Sweeper
from frostline_proto.v1 import cache_pb2_grpc
from frostline_rpc.auth import Tokens
from frostline_rpc.server import start_server

PASSWORD_VARIABLE = "FROSTLINE_REDIS_PASSWORD"
PASSWORD_FILE = "redis.password"
ADDRESS_FILE = "cache.address"
REFRESH_SECONDS = 1.0
SWEEP_SECONDS = 10.0
UNKNOWN_GRACE_SECONDS = 120.0
log = logging.getLogger("frostline_cache_server")


def main() -> int:
    """Exit codes: 0 ended as told, 2 the user's mistake."""
    options = _arguments().parse_args()
    set_up_logs(options.log_level)
    try:
        addresses = parse_addresses(options.shards)
        if options.memory_bytes is not None and options.memory_bytes < 1 << 20:
            raise ValueError(f"--memory-bytes is {options.memory_bytes}; at least {1 << 20} is needed")
        tokens = Tokens.read(options.run_dir / "tokens.json")
        asyncio.run(serve(options.run_dir, addresses, options.host, options.port, options.memory_bytes, tokens))
    except (ValueError, OSError) as error:
        print(f"frostline cache server: {error}", file=sys.stderr)
        return 2
    return 0


async def serve(
    run_dir: Path, addresses: list[tuple[str, int]], host: str, port: int, memory_bytes: int | None, tokens: Tokens
) -> None:
    """Serve until SIGTERM or SIGINT; the address is in `<run_dir>/cache.address` once calls are answered."""
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    shards = ShardMap(addresses, redis_password(run_dir))
    await shards.refresh()
    boundaries = Boundaries()
    control = CacheControl(shards, boundaries, memory_bytes)
    server, bound = await start_server(lambda added: _add_services(added, control), host, port, tokens)
    write_address(run_dir / ADDRESS_FILE, f"{host}:{bound}")
    log.info("serving", extra={"address": f"{host}:{bound}", "shards": len(addresses), "limit_bytes": control.limit_bytes()})
    sweeper = Sweeper(shards, boundaries, UNKNOWN_GRACE_SECONDS)
    background = [
        asyncio.create_task(_refresh_for_ever(shards)),
        asyncio.create_task(sweeper.run(SWEEP_SECONDS, control.usable_bytes)),
    ]
    stopping = asyncio.create_task(stop.wait())
    # A background task never returns; if one fails that is our own mistake and must be seen, not outlived.
    await asyncio.wait([stopping, *background], return_when=asyncio.FIRST_COMPLETED)
    for task in [stopping, *background]:
        if task.done():
            task.result()
        task.cancel()
    await server.stop(grace=1.0)
    await shards.close()
    log.info("stopped")


def redis_password(run_dir: Path) -> str | None:
    """From the environment, else from the run's file, else none."""
    if PASSWORD_VARIABLE in os.environ:
        return os.environ[PASSWORD_VARIABLE]
    file = run_dir / PASSWORD_FILE
    return file.read_text().strip() if file.exists() else None


def write_address(path: Path, address: str) -> None:
    """Atomically: a reader sees the old address or the new one."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_text(address + "\n")
    fresh.replace(path)


def _add_services(server: Any, control: CacheControl) -> None:
    cache_pb2_grpc.add_CacheControlServicer_to_server(control, server)
    try:
        from grpc_health.v1 import health, health_pb2_grpc
    except ImportError:
        # The health service is what Kubernetes probes ask; a local run has no use for it.
        log.info("no health service", extra={"reason": "grpcio-health-checking is not installed"})
        return
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)


async def _refresh_for_ever(shards: ShardMap) -> None:
    while True:
        await asyncio.sleep(REFRESH_SECONDS)
        await shards.refresh()


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="frostline_cache_server", description="Control plane of the activation cache.")
    parser.add_argument("--run-dir", type=Path, required=True, help="holds tokens.json; cache.address is written there")
    parser.add_argument("--shards", required=True, help="Redis servers, host:port,host:port, in hashing order")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 chooses one")
    parser.add_argument("--memory-bytes", type=int, default=None, help="limit of all shards together; default: their maxmemory")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
