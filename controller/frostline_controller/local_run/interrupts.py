"""Requests of the user to stop, received as signals: Ctrl-C, SIGTERM, and the end of the terminal's session (SIGHUP)."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

LOOK_SECONDS = 0.05


class Interrupts:
    """The number of times that the user has asked to stop.

    SIGHUP never counts as the second time, since a session that ends sends it beside SIGTERM.
    """

    def __init__(self) -> None:
        self.count = 0

    def note(self, number: int, frame: FrameType | None) -> None:
        """Count a signal: the handler of SIGINT, SIGTERM and SIGHUP."""
        self.count = max(1, self.count) if number == signal.SIGHUP else self.count + 1

    def sleep(self, seconds: float) -> None:
        """Sleep that long, or until the user asks to stop: a signal does not cut Python's own sleep short."""
        count, until = self.count, time.monotonic() + seconds
        while self.count == count and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, LOOK_SECONDS))


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """Count the signals within the block, instead of ending. A SIGHUP that is ignored (nohup) stays ignored."""
    noted = Interrupts()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, noted.note) for number in numbers}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
