"""Retries of the requests that precede leading, until the API server answers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from frostline_contract.backoff import Backoff
from frostline_controller.cluster.kubernetes.api import ApiError

Answer = TypeVar("Answer")
WAIT_SECONDS_FIRST, WAIT_SECONDS_MAX = 0.5, 15.0
log = logging.getLogger(__name__)


async def patiently(ask: Callable[[], Awaitable[Answer]], stop: asyncio.Event) -> Answer:
    """Return the answer of the API server; the request is repeated until one comes.

    ask: called anew after each failure (if the process ended instead, its restarts would come at ever longer intervals). Raises
    ApiError once `stop` is set.
    """
    backoff = Backoff(WAIT_SECONDS_FIRST, WAIT_SECONDS_MAX, spread=0.5)
    while True:
        try:
            return await ask()
        except ApiError as error:
            if stop.is_set():
                raise
            wait = backoff.failed()
            log.warning("asked again in %.1f s error=%s", wait, error)
        await asyncio.sleep(wait)
