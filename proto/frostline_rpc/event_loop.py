"""Event loop and garbage collector settings of a process that serves many gRPC callers.

gRPC signals each finished operation (a message received, a message on its way) to its asyncio server by one byte on a socket. At
each call the server's callback reads one byte and handles one operation. With asyncio's own loop each operation then costs a turn
of the loop, which polls all sockets, and later operations wait for as many turns. This loop handles all finished operations in
one turn, up to a bound.
"""

import array
import asyncio
import fcntl
import gc
import selectors
import termios
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
OPERATIONS_A_TURN = 64
"""The most operations in a turn, so that a turn stays short: each operation may wake a task."""
YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER = 10_000, 20, 1_000_000_000
"""Thresholds of the garbage collector's three generations. The oldest generation is collected by the clock and never by count:
with a thousand callers it has some hundred thousand objects, its collection takes a tenth of a second, and collections by count
came most often under the highest load."""
FULL_COLLECTION_SECONDS = 60.0


def run_serving(main: Coroutine[Any, Any, Result], selector: selectors.BaseSelector | None = None) -> Result:
    """Run a coroutine to its end in a ServingLoop. Returns its result.

    Modules and other objects made during start-up are excluded from garbage collection, since collecting them would stop the loop
    for tens of milliseconds. Unreachable cycles live for FULL_COLLECTION_SECONDS at most.
    """
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER)
    try:
        with asyncio.Runner(loop_factory=lambda: ServingLoop(selector)) as runner:
            _collect_by_the_clock(runner.get_loop())
            return runner.run(main)
    finally:
        gc.set_threshold(*thresholds)


def _collect_by_the_clock(loop: asyncio.AbstractEventLoop) -> None:
    def collect() -> None:
        gc.collect()
        loop.call_later(FULL_COLLECTION_SECONDS, collect)

    loop.call_later(FULL_COLLECTION_SECONDS, collect)


class ServingLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with another treatment of gRPC's completion queue.

    Args:
        selector: polls the sockets; None: the platform's best.
    """

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        super().__init__(selector)

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        """Register a callback for a readable socket, as asyncio does.

        gRPC's callback runs once for each waiting operation, at most OPERATIONS_A_TURN times, before other sockets' callbacks.
        """
        owner = getattr(getattr(callback, "func", callback), "__self__", None)
        if type(owner).__name__ != "PollerCompletionQueue":
            return super().add_reader(fd, callback, *args)
        number, waiting = fd.fileno(), array.array("i", [0])

        def take_several() -> None:
            fcntl.ioctl(number, termios.FIONREAD, waiting)
            for _ in range(min(waiting[0], OPERATIONS_A_TURN)):
                callback(*args)

        return super().add_reader(fd, take_several)
