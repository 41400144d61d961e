"""Measures how long each thread has waited for other members, to distinguish a member that hangs from those that wait for it.

The collectives mark their blocking waits here. This costs two dictionary writes a wait and no lock, since a thread writes its own
entry only. A device that runs behind its thread waits later than the thread: the begin and the end of a wait are also marked in
its trail (`step.device_trail`).
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol


class OnDevice(Protocol):
    """The interface of a device's trail: marks where a wait begins (True) and ends (False) in the device's queue of work."""

    def wait(self, waiting: bool) -> None:
        """Mark the begin or the end of a wait behind the work that is queued so far."""


@dataclass
class Waits:
    """One thread's waits. total: seconds of all ended waits. since: start of the current wait, or 0.0. on_device: the trail of
    its device, if the device runs behind the thread.
    """

    total: float = 0.0
    since: float = 0.0
    on_device: OnDevice | None = None


_waits: dict[int, Waits] = {}


@contextmanager
def blocked() -> Iterator[None]:
    """A context in which the calling thread, and its device, wait for another member. Nested waits count once."""
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
    """A context in which only the calling thread waits for another member, while its device may compute."""
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
    """The waits of a thread, by its ident."""
    found = _waits.get(thread)
    return found if found is not None else _waits.setdefault(thread, Waits())
