"""Waiting for a collective or for messages so that an interruption always ends it, also where the library forgets it.

gloo can lose a message under way: a peer says that it is ready to receive and goes; the write fails after the message has left
the list of those that wait and before it is in that of those being sent, so whoever waits for it is never told, however dead its
sockets are. So the wait is left to a thread beside the caller's, and the caller waits for that thread, or for the interruption.
A thread that waits for a lost message is left to itself; there is one in the life of a pair that breaks, if at all.
"""

import queue
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from frostline_trainer.comm.waiting import blocked

POLL_SECONDS = 0.1
"""How often an interruption is looked for; what ends by itself is noticed at once."""
GRACE_SECONDS = 0.2
"""How long after it the library may still say by itself what is wrong."""


class _Wait:
    """One wait for one thing after the other: `done` is released when it is over. error: how it ended, None for well."""

    __slots__ = ("arguments", "done", "error", "works")

    def __init__(self, works: Sequence[Any], arguments: tuple[Any, ...]) -> None:
        self.works, self.arguments = tuple(works), arguments
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def carry_out(self) -> None:
        try:
            for work in self.works:
                work.wait(*self.arguments)
        except BaseException as error:
            # Without its frames, which hold what must be dropped before sockets close.
            self.error = error.with_traceback(None)
        finally:
            work = None  # no reference may outlive the wait: sockets close with the last one
            self.works = ()
            self.done.release()


class _Waiter:
    """A thread that carries out one wait after the other, for one calling thread; it ends with that one."""

    def __init__(self) -> None:
        self.waits: queue.SimpleQueue[_Wait | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self.waits,), name="waits", daemon=True).start()
        weakref.finalize(self, self.waits.put, None)


def _serve(waits: "queue.SimpleQueue[_Wait | None]") -> None:
    while (wait := waits.get()) is not None:
        wait.carry_out()
        wait = None


_callers = threading.local()


def wait_for(works: Sequence[Any], arguments: tuple[Any, ...], interrupted: threading.Event) -> None:
    """`work.wait(*arguments)` of each, with what it raises; RuntimeError where it is `interrupted` and does not end of it.

    Handing a wait over costs more than a wait for what is there already: things that are waited for together are one wait.
    """
    waiter = getattr(_callers, "waiter", None)
    if waiter is None:
        waiter = _callers.waiter = _Waiter()
    wait = _Wait(works, arguments)
    waiter.waits.put(wait)
    with blocked():
        while not wait.done.acquire(timeout=POLL_SECONDS):
            if not interrupted.is_set():
                continue
            if wait.done.acquire(timeout=GRACE_SECONDS):
                break
            _callers.waiter = None
            raise RuntimeError("the group was interrupted, and a message under way in it is lost")
    if wait.error is not None:
        raise wait.error
