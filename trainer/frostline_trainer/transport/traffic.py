"""Counts the bytes that a worker's groups and transports send and receive, when a message or collective begins.

A collective is counted with the bytes of a ring algorithm. The library may use another one; the sums over members are the same.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from frostline_contract.usage import Way

Bytes = dict[str, int]
"""Bytes by `Way`, without entries of 0."""


class Traffic:
    """One worker's sums over its life; the groups of several generations add to them, from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent, self._received = Counter[str](), Counter[str]()
        self._reported: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._counted: dict[Way, Callable[[], tuple[int, int]]] = {}
        self._aside = False

    def add(self, way: Way, sent: int, received: int) -> None:
        """Add bytes that this worker sends and receives."""
        with self._lock:
            way = Way.OTHER if self._aside else way
            self._sent[way] += sent
            self._received[way] += received

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context in which the bytes of all groups are not those of a step, since links are measured."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def follow(self, way: Way, counted: Callable[[], tuple[int, int]]) -> None:
        """Take a way's sums from a function that returns (sent, received), if another part counts them already."""
        self._counted[way] = counted

    def so_far(self) -> tuple[Bytes, Bytes]:
        """(sent, received) over the worker's life."""
        sent, received = self._sums()
        return dict(sent), dict(received)

    def since_reported(self) -> tuple[Bytes, Bytes]:
        """(sent, received) since `mark_reported`."""
        return tuple(dict(now - before) for now, before in zip(self._sums(), self._reported, strict=True))  # type: ignore[return-value]

    def mark_reported(self, sent: Bytes, received: Bytes) -> None:
        """Note that the values of `since_reported` were recorded."""
        for known, newer in zip(self._reported, (sent, received), strict=True):
            known.update(newer)

    def _sums(self) -> tuple[Counter[str], Counter[str]]:
        with self._lock:
            sent, received = Counter(self._sent), Counter(self._received)
        for way, counted in self._counted.items():
            sent[way], received[way] = counted()
        return +sent, +received


class Tally:
    """The traffic of one group or transport. way: what its bytes are used for now."""

    def __init__(self, traffic: Traffic, way: Way) -> None:
        self._traffic, self.way = traffic, way

    def message(self, sent: int = 0, received: int = 0) -> None:
        """Count a message in one direction."""
        self._traffic.add(self.way, sent, received)

    def summed(self, size: int, members: int) -> None:
        """Count an all-reduce of `size` bytes: in a ring, each member's chunks go round twice."""
        carried = 2 * size * (members - 1) // members
        self._traffic.add(self.way, carried, carried)

    def broadcast(self, size: int, members: int, is_root: bool) -> None:
        """Count a broadcast of `size` bytes."""
        self._traffic.add(self.way, size * (members - 1) if is_root else 0, 0 if is_root else size)

    @contextmanager
    def carrying(self, way: Way) -> Iterator[None]:
        """A context in which bytes count for another way. A group has one user at a time, the training thread."""
        before, self.way = self.way, way
        try:
            yield
        finally:
            self.way = before
