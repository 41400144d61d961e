"""How a process that serves many gRPC callers runs: its event loop, and what its garbage collector leaves alone.

gRPC's asyncio server is told of each finished operation (a message received, a message on its way) by one byte on a socket, reads
one byte when it is called, and takes one operation. With asyncio's own loop each operation then costs a turn of the loop, with
its look at all sockets, and what is behind it waits for as many turns. Here a turn takes all that are there, up to a bound.
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
"""So that one turn stays short: each may wake a task."""
YOUNG_OBJECTS, YOUNG_COLLECTIONS, NEVER = 10_000, 20, 1_000_000_000
"""Thresholds of the garbage collector's three generations: the oldest, of some hundred thousand objects with a thousand callers,
is looked at by the clock alone. To look at it takes a tenth of a second, and by count it came most often when much went on."""
FULL_COLLECTION_SECONDS = 60.0


def run_serving(main: Coroutine[Any, Any, Result], selector: selectors.BaseSelector | None = None) -> Result:
    """Run to its end. Modules and what else start-up has made stay for the process's life: to look at them in each full
    collection would make turns of tens of milliseconds. Unreachable cycles live for FULL_COLLECTION_SECONDS at the longest."""
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
    """asyncio's loop, but for what gRPC's completion queue registers. selector: how it looks at its sockets."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        super().__init__(selector)

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        """Register a callback for a readable socket, as asyncio does.

        gRPC's is called once for each operation that waits, OPERATIONS_A_TURN at most, before other sockets have their turn.
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
