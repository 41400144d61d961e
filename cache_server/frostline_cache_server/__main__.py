"""`python -m frostline_cache_server`: the control plane of the activation cache, until SIGTERM.

On a cluster, environment set by the chart: FROSTLINE_AUDIENCE (of trainers' tokens; with it no run directory is needed),
FROSTLINE_NAMESPACE, FROSTLINE_RELEASE, FROSTLINE_BIND_HOST (default of --host).
"""

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from frostline_cache_server.boundaries import Boundaries
from frostline_cache_server.logs import set_up_logs
from frostline_cache_server.service import CacheControl
from frostline_cache_server.shards import ShardMap, parse_addresses
from frostline_cache_server.sweeper import Sweeper
from frostline_contract.durable_files import replace_durably
from frostline_contract.run_directory import RunDirectory
from frostline_proto.v1 import cache_pb2_grpc
from frostline_rpc.auth import CONTROLLER, OPERATOR, WORKER, Callers, Tokens
from frostline_rpc.health import serve_health
from frostline_rpc.server import start_server

PASSWORD_VARIABLE = "FROSTLINE_REDIS_PASSWORD"
REFRESH_SECONDS = 1.0
SWEEP_SECONDS = 10.0
UNKNOWN_GRACE_SECONDS = 120.0
log = logging.getLogger("frostline_cache_server")


def main() -> int:
    """Run the server. Exit codes: 0 ended by a signal, 2 the user's mistake."""
    options = _arguments().parse_args()
    set_up_logs(options.log_level)
    try:
        addresses = parse_addresses(options.shards)
        if options.memory_bytes is not None and options.memory_bytes < 1 << 20:
            raise ValueError(f"--memory-bytes is {options.memory_bytes}; at least {1 << 20} is needed")
        asyncio.run(serve(options, addresses, known_callers(options.run_dir)))
    except (ValueError, OSError) as error:
        print(f"frostline cache server: {error}", file=sys.stderr)
        return 2
    return 0


def known_callers(run_dir: Path | None) -> Callers:
    """Return the accepted callers: service accounts on a cluster, else the tokens of the run's directory.

    Raises ValueError where there is neither, OSError.
    """
    if audience := os.environ.get("FROSTLINE_AUDIENCE"):
        # Imported here, since a local run needs neither signatures nor an API server.
        from frostline_rpc.api_server import fetch_keys, token_review
        from frostline_rpc.projected import Bearer, ProjectedTokens

        release = os.environ["FROSTLINE_RELEASE"]
        roles = {f"{release}-trainer": WORKER, f"{release}-controller": CONTROLLER, f"{release}-check": OPERATOR}
        is_genuine = token_review(audience)

        async def confirm(bearer: Bearer, token: str) -> bool:
            return await is_genuine(token)

        return ProjectedTokens(audience, os.environ["FROSTLINE_NAMESPACE"], roles, fetch_keys, confirm)
    if run_dir is None:
        raise ValueError("nobody's tokens are known: give --run-dir, or on a cluster set FROSTLINE_AUDIENCE")
    return Tokens.read(RunDirectory(run_dir).tokens)


async def serve(options: argparse.Namespace, addresses: list[tuple[str, int]], callers: Callers) -> None:
    """Serve until SIGTERM or SIGINT; the address is in `<run_dir>/cache.address` once calls are answered."""
    run_dir, host, memory_bytes = options.run_dir, options.host, options.memory_bytes
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stop.set)
    shards = ShardMap(addresses, redis_password(run_dir))
    await shards.refresh()
    boundaries = Boundaries(options.shared)
    control = CacheControl(shards, boundaries, memory_bytes)
    server, bound = await start_server(
        lambda added: cache_pb2_grpc.add_CacheControlServicer_to_server(control, added), host, options.port, callers
    )
    health = await serve_health(host, options.health_port) if options.health_port else None
    if options.metrics_port:
        from prometheus_client import start_http_server

        from frostline_cache_server.metrics import registry_of

        registry = registry_of(control.totals, shards, control.limit_bytes())
        start_http_server(options.metrics_port, host, registry=registry)
    if run_dir is not None:
        await asyncio.to_thread(replace_durably, RunDirectory(run_dir).cache_address, f"{host}:{bound}\n")
    log.info("serving", extra={"address": f"{host}:{bound}", "shards": len(addresses), "limit_bytes": control.limit_bytes()})
    sweeper = Sweeper(shards, boundaries, UNKNOWN_GRACE_SECONDS)
    background = [
        asyncio.create_task(_refresh_for_ever(shards)),
        asyncio.create_task(sweeper.run(SWEEP_SECONDS, control.usable_bytes)),
    ]
    stopping = asyncio.create_task(stop.wait())
    # A background task never returns; a failure of one is a programming mistake and must not be hidden.
    await asyncio.wait([stopping, *background], return_when=asyncio.FIRST_COMPLETED)
    for task in [stopping, *background]:
        if task.done():
            task.result()
        task.cancel()
    await server.stop(grace=1.0)
    if health is not None:
        await health.stop(None)
    await shards.close()
    log.info("stopped")


def redis_password(run_dir: Path | None) -> str | None:
    """Return the password from the environment, else from the run's file, else None."""
    if PASSWORD_VARIABLE in os.environ:
        return os.environ[PASSWORD_VARIABLE]
    file = RunDirectory(run_dir).redis_password if run_dir is not None else None
    return file.read_text().strip() if file is not None and file.exists() else None


async def _refresh_for_ever(shards: ShardMap) -> None:
    while True:
        await asyncio.sleep(REFRESH_SECONDS)
        await shards.refresh()


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="frostline_cache_server", description="Control plane of the activation cache.")
    parser.add_argument("--run-dir", type=Path, help="holds tokens.json; cache.address is written there. Not needed on a cluster")
    parser.add_argument("--shards", required=True, help="Redis servers, host:port,host:port, in hashing order")
    parser.add_argument("--host", default=os.environ.get("FROSTLINE_BIND_HOST", "127.0.0.1"), help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port to listen on; 0 chooses one")
    parser.add_argument("--health-port", type=int, default=0, help="plain-text port of the standard health service; 0: none")
    parser.add_argument("--metrics-port", type=int, default=0, help="port of Prometheus' metrics; 0: none")
    parser.add_argument("--memory-bytes", type=int, default=None, help="limit of all shards together; default: their maxmemory")
    parser.add_argument("--shared", action="store_true", help="runs come and go: keep what one has left until memory is wanted")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    return parser


if __name__ == "__main__":
    sys.exit(main())
