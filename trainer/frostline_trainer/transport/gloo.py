"""Interruptible waits for gloo, which has no working abort.

A gloo collective that waits for a silent peer (one that is stopped, or has failed and still holds references) ends only when its
sockets are closed (docs/design.md 12.1). gloo does not expose its sockets. But each group listens at an address of its own, and
every connection of a group has such an address at one of its ends; by these addresses the connections are found and shut down.

This is not enough if gloo loses a message: a peer announces that it is ready to receive, and ends; the write fails after the
message has left gloo's list of waiting sends and before it is in the list of active ones. A wait for this message never ends,
even with closed sockets. Therefore another thread does the waiting, and the caller waits for that thread or for the
interruption. A thread that waits for a lost message is abandoned; there is at most one for each broken pair of members. The
group is abandoned with it: the destructor of a gloo group waits for the group's own threads, so for that message.
"""

import ctypes
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
"""Seconds between two checks for an interruption; a wait that ends by itself is noticed at once."""
GRACE_SECONDS = 0.2
"""Seconds after an interruption in which gloo may still raise its own, more precise error."""


# ---- sockets


def listening() -> set[Address]:
    """The addresses at which this process listens."""
    return {_address(opened.getsockname()) for opened in _sockets() if _listens(opened)}


def cut(own: Address, peers: Collection[Address]) -> int:
    """Shut down every connection that was accepted at `own` or leads to one of `peers`. Returns their number.

    Listeners are not shut down, since gloo would end the process.
    """
    number = 0
    for opened in _sockets():
        with suppress(OSError):  # closed meanwhile or never connected, so that no thread waits on it
            if not _listens(opened) and (_address(opened.getsockname()) == own or _address(opened.getpeername()) in peers):
                opened.shutdown(socket.SHUT_RDWR)
                number += 1
    return number


def _sockets() -> Iterator[socket.socket]:
    """Every TCP socket of this process, by a duplicated descriptor, which stays valid if the original is closed meanwhile."""
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
    """One wait for several works, one after the other; `done` is released at its end. error: the failure, None for success."""

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
            # Without its frames: their references would keep sockets open.
            self.error = error.with_traceback(None)
        finally:
            work = None  # no reference may outlive the wait: sockets close with the last one
            self.works = ()
            self.done.release()


class _Waiter:
    """A thread that carries out the waits of one calling thread, one after the other, and ends with that thread."""

    def __init__(self) -> None:
        self.waits: queue.SimpleQueue[_Wait | None] = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self.waits,), name="waits", daemon=True).start()
        weakref.finalize(self, self.waits.put, None)


def _serve(waits: "queue.SimpleQueue[_Wait | None]") -> None:
    while (wait := waits.get()) is not None:
        wait.carry_out()
        wait = None


_callers = threading.local()


def wait_for(works: Sequence[Any], arguments: tuple[Any, ...], interrupted: threading.Event, group: Any) -> None:
    """Call `work.wait(*arguments)` for each work. Raises its exception, and RuntimeError if `interrupted` and it does not end.

    group: the works' own. It is never destroyed after a wait that does not end.

    All works are one wait, since passing a wait to the other thread costs more than a wait for a message that is there already.
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
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # kept also when Python clears its modules at the end
            raise RuntimeError("the group was interrupted, and a message under way in it is lost")
    if wait.error is not None:
        raise wait.error
