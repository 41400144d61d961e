"""Retries of what precedes leading: no run ends by a write that fails, or a cluster that is away, while a controller starts."""

import asyncio
import contextlib
import errno
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from frostline_contract.backoff import Backoff
from frostline_controller.cluster.backend import ClusterError

Answer = TypeVar("Answer")
WAIT_SECONDS_FIRST, WAIT_SECONDS_MAX = 0.5, 15.0
FILE_SECONDS = 1.0
"""The wait after an error of a file, in seconds: nobody is spared by a longer one, and somebody has just freed space."""
REMEDIES = {
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there, or raise the quota",
    errno.EIO: "mend that disk or its mount",
    errno.ESTALE: "mount that folder again",
    errno.EROFS: "mend that disk, and mount it for writing again",
    errno.ETIMEDOUT: "mend the connection to that file server",
    errno.EAGAIN: "end or continue the process that holds it",
}
"""Errors of a file that pass when somebody has done this. Any other one is a mistake, such as a missing file or a taken port."""
log = logging.getLogger(__name__)


class Stopped(Exception):
    """A signal has ended the wait: the process ends before it has led."""


def may_pass(error: OSError) -> bool:
    """Whether an error may pass by itself or by somebody's help, without a new start."""
    return isinstance(error, ClusterError) or error.errno in REMEDIES


async def patiently(
    ask: Callable[[], Awaitable[Answer]], stop: asyncio.Event, passes: Callable[[OSError], bool] = may_pass
) -> Answer:
    """Return the answer of `ask`, which is called anew after each failure that may pass.

    If the process ended instead, its restarts would come at ever longer intervals, or not at all.

    Args:
        ask: may raise OSError.
        stop: ends the waiting.
        passes: whether a failure may pass.

    Raises:
        Stopped: `stop` was set after a failure.
        OSError: the failure does not pass.
    """
    backoff = Backoff(WAIT_SECONDS_FIRST, WAIT_SECONDS_MAX, spread=0.5)
    while True:
        try:
            return await ask()
        except OSError as error:
            if not passes(error):
                raise
            if isinstance(error, ClusterError):
                wait, remedy = backoff.failed(), error.remedy
            else:
                wait, remedy = FILE_SECONDS, REMEDIES.get(error.errno or 0, "")
            log.warning("the start waits, trying again in %.1f s: %s%s", wait, error, f"; {remedy}" if remedy else "")
        await pause(stop, wait)


async def pause(stop: asyncio.Event, seconds: float) -> None:
    """Wait for so long. Raises Stopped where `stop` is set meanwhile."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)
    if stop.is_set():
        raise Stopped
