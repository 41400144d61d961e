"""The sockets of this process: which of them are a process group's, and how what waits on them is made to end.

gloo has no abort that works: a collective that waits for a silent peer ends only when its sockets do
(docs/design.md 12.1: a stopped peer, or one that failed and still holds references). The library tells nobody which sockets it
opened, but each group listens at an address of its own, and every connection of a group has such an address at one of its ends.
"""

import os
import socket
from collections.abc import Collection, Iterator
from contextlib import suppress

Address = tuple[str, int]
"""(numeric host, TCP port)."""


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
