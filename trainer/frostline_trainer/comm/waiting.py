"""For how long each thread has been waiting for other members: what tells a member that hangs from those that wait for it.

The collectives mark their blocking waits here. Two dictionary writes a wait, no lock: a thread writes its own entry only.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Waits:
    """One thread's waiting. total: seconds of all waits that are over. since: start of the one that is going on, or 0.0."""

    total: float = 0.0
    since: float = 0.0


_waits: dict[int, Waits] = {}


@contextmanager
def blocked() -> Iterator[None]:
    """The calling thread waits for another member while this is open. Waits inside a wait count once."""
    mine = waits_of(threading.get_ident())
    if mine.since:
        yield
        return
    mine.since = time.monotonic()
    try:
        yield
    finally:
        mine.total += time.monotonic() - mine.since
        mine.since = 0.0


def waits_of(thread: int) -> Waits:
    """The waiting of a thread, by its ident."""
    found = _waits.get(thread)
    return found if found is not None else _waits.setdefault(thread, Waits())
