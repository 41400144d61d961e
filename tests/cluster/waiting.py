"""Waiting for changes that a cluster makes in its own time."""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.cluster.api import TROUBLE

Found = TypeVar("Found")
POLL_SECONDS = 0.1


def wait_for(look: Callable[[], Found], what: str, seconds: float = 180.0) -> Found:
    """Call `look` repeatedly until the answer is true, and return it. API errors count as no. Raises TimeoutError."""
    end, last = time.monotonic() + seconds, ""
    while True:
        try:
            found = look()
            if found:
                return found
            last = repr(found)
        except TROUBLE as error:
            last = str(error)
        if time.monotonic() >= end:
            raise TimeoutError(f"{what}: not within {seconds:g} s; last: {last[:2000]}")
        time.sleep(POLL_SECONDS)


def stays(look: Callable[[], bool], seconds: float) -> bool:
    """Whether the answer stays true for `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not look():
            return False
        time.sleep(POLL_SECONDS)
    return True
