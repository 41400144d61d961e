"""For how long each thread has been waiting for other members: what tells a member that hangs from those that wait for it.

The collectives mark their blocking waits here. Two dictionary writes a wait, no lock: a thread writes its own entry only. A
device that runs behind its thread waits later than the thread does: its trail (`step.device_trail`) is told of both ends.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol


class OnDevice(Protocol):
    """Told where a wait begins (True) and ends (False) in the order of a device's work."""

    def wait(self, waiting: bool) -> None:
        """Mark the beginning or the end of a wait at the end of what the device was given so far."""


@dataclass
class Waits:
    """One thread's waiting. total: seconds of all waits that are over. since: start of the one that is going on, or 0.0.
    on_device: the trail of its device, where that runs behind it.
    """

    total: float = 0.0
    since: float = 0.0
    on_device: OnDevice | None = None


_waits: dict[int, Waits] = {}


@contextmanager
def blocked() -> Iterator[None]:
    """The calling thread waits for another member while this is open, and its device with it. Waits inside a wait count once."""
    device = waits_of(threading.get_ident()).on_device
    if device is None or waits_of(threading.get_ident()).since:
        with thread_blocked():
            yield
        return
    device.wait(True)
    with thread_blocked():
        yield
    device.wait(False)


@contextmanager
def thread_blocked() -> Iterator[None]:
    """As `blocked`, where the device has work of its own to do meanwhile."""
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
