"""What gloo lacks: a wait that always ends when the group is interrupted.

A collective that waits for a silent peer ends only when its sockets do (docs/design.md 12.1: a stopped peer, or one that failed
and still holds references), and gloo has no abort that works. The library tells nobody which sockets it opened, but each group
listens at an address of its own, and every connection of a group has such an address at one of its ends: they are shut down.

That is not enough where gloo loses a message under way: a peer says that it is ready to receive and goes; the write fails after
the message has left the list of those that wait and before it is in that of those being sent, so whoever waits for it is never
told, however dead its sockets are. So the wait is left to a thread beside the caller's, and the caller waits for that thread, or
for the interruption. A thread that waits for a lost message is left to itself; there is one in the life of a pair that breaks, if
at all.
"""

import os
import queue
import socket
import threading
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from frostline_trainer.transport.waiting import blocked

Address = tuple[str, int]
"""(numeric host, TCP port)."""
POLL_SECONDS = 0.1
"""How often an interruption is looked for; what ends by itself is noticed at once."""
GRACE_SECONDS = 0.2
"""How long after it the library may still say by itself what is wrong."""


# ---- sockets


def listening() -> set[Address]:
    """Where this process listens."""
    return {_address(opened.getsockname()) for opened in _sockets() if _listens(opened)}


def cut(own: Address, peers: Collection[Address]) -> int:
    """Shut down every connection that was accepted at `own` or leads to one of `peers`. Returns their number.

    Listeners stay as they are: gloo ends the process when one of them is shut down.
    """
    number = 0
    for opened in _sockets():
        with suppress(OSError):  # it was closed meanwhile, or never connected: nobody waits on it
            if not _listens(opened) and (_address(opened.getsockname()) == own or _address(opened.getpeername()) in peers):
                opened.shutdown(socket.SHUT_RDWR)
                number += 1
    return number


def _sockets() -> Iterator[socket.socket]:
    """Every TCP socket, by a descriptor of our own: whoever closes the original meanwhile cannot make it name another one."""
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            opened = socket.socket(fileno=os.dup(int(entry)))
        except OSError:
            continue
        with opened:
            if opened.family in (socket.AF_INET, socket.AF_INET6) and opened.type == socket.SOCK_STREAM:
                yield opened


def _listens(opened: socket.socket) -> bool:
    return bool(opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _address(name: tuple) -> Address:
    return name[0], name[1]


# ---- waits


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
