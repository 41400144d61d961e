"""The life of a leading controller: it serves its port and reconciles until it is stopped or another controller takes over."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from frostline_controller.cluster.backend import Conflict
from frostline_controller.run.controller import Controller
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.journal import all_written
from frostline_controller.run.reconciler import Reconciler
from frostline_controller.serving.servicer import add_control
from frostline_rpc.auth import Callers
from frostline_rpc.errors import NotLeading
from frostline_rpc.server import CONCURRENT_CALLS_MAX, start_server

log = logging.getLogger(__name__)


async def lead(controller: Controller, callers: Callers, host: str, port: int, stop: asyncio.Event,
               on_serving: Callable[[int], Awaitable[None]]) -> bool:  # fmt: skip
    """Lead a run whose controller has started.

    Args:
        controller: the run's parts, started.
        callers: who may call.
        host: address to listen on.
        port: port to listen on; 0: any free one.
        stop: set to end the service.
        on_serving: called with the port as soon as calls are answered.

    Returns:
        True where `stop` was set, False where another controller has taken over.

    Raises:
        OSError: the port is taken.
        Exception: as `on_serving` has raised it.
    """
    facts, outbox = controller.run.facts, controller.run.outbox
    calls_max = max(CONCURRENT_CALLS_MAX, 4 * facts.job.placement.workers)
    server, bound = await start_server(lambda server: add_control(server, controller), host, port, callers, calls_max)
    try:
        await on_serving(bound)
    except BaseException:
        outbox.streams.close_all()
        await server.stop(None)
        raise
    facts.begin()
    reconciler = Reconciler(controller)
    reconciling = asyncio.create_task(reconciler.serve())
    stopping = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait({reconciling, stopping}, return_when=asyncio.FIRST_COMPLETED)
    outbox.streams.close_all()
    await server.stop(0.5)
    stopped = reconciling not in done
    if stopped:
        reconciler.stop()
        await reconciling
    else:
        error = reconciling.exception()
        if not isinstance(error, Conflict | NotLeading):
            raise error or AssertionError("the reconciler ended by itself")
        log.error("another controller leads, leaving error=%s", error)
    stopping.cancel()
    await all_written()
    controller.run.close()
    return stopped


def stamp_logs(facts: RunFacts) -> None:
    """Add the current generation and step to every line of the log."""

    def stamp(line: logging.LogRecord) -> bool:
        line.generation = str(facts.current.generation) if facts.current else "none"
        line.step = facts.step
        return True

    form = "time=%(asctime)s level=%(levelname)s generation=%(generation)s step=%(step)s logger=%(name)s %(message)s"
    for handler in logging.getLogger().handlers:
        handler.addFilter(stamp)
        handler.setFormatter(logging.Formatter(form))
