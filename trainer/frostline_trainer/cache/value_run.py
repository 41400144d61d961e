"""Replies of one length in a row, received straight to where they belong: many values a system call, and no copy on their way.

What a Redis sends for n values of one length is known but for the values themselves. So the next bytes of the stream are
scattered: each value's into its target, the few between them (the end of one reply, the line of the next) into a strip of their
own, which is compared with what it must say as it fills. Where it says something else (a missing key, a foreign length), the
stream from that reply on is given back, to be read reply by reply.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

VIEWS_MAX = 960
"""Of one system call; the kernel takes 1024."""
END = b"\r\n"


class ValueRun:
    """The replies to n requests that are in flight. targets: buffers of `length` bytes together, for each reply as many."""

    def __init__(self, targets: Sequence[Sequence[memoryview]], length: int) -> None:
        expected = END + b"$%d\r\n" % length  # the end of the reply before, and a line
        self._step, self._period, self._count = len(expected), length + len(expected), len(targets)
        self._parts = len(targets[0]) + 1
        self._pattern = expected * len(targets) + END
        self._strip = strip = memoryview(bytearray(len(self._pattern)))
        strip[: len(END)] = END  # in front of the first line, where no reply ends
        step = self._step
        views = [strip[len(END) : step]]
        for number, target in enumerate(targets, start=1):
            views.extend(target)
            views.append(strip[number * step : number * step + step])
        self._views = views
        self._offsets = [0, *accumulate(map(len, views))]
        self.total = self._offsets[-1]
        self.received = self._checked = 0
        self.differs_at: int | None = None

    @property
    def missing(self) -> int:
        """Bytes that are yet to come."""
        return self.total - self.received

    def room(self) -> list[memoryview]:
        """Where the next bytes go."""
        place = bisect_right(self._offsets, self.received) - 1
        first = self._views[place][self.received - self._offsets[place] :]
        return [first, *self._views[place + 1 : place + VIEWS_MAX]]

    def note(self, count: int) -> bool:
        """So many bytes have come. False where they are not as they must be: `differs_at` is the first reply that is not.

        A reply that has arrived in part counts as soon as it cannot become what it must be: nobody waits for what was never
        promised.
        """
        self.received += count
        before, within = divmod(self.received + len(END), self._period)
        filled = min(before * self._step + min(within, self._step), len(self._pattern))
        if self._strip[self._checked : filled] != self._pattern[self._checked : filled]:
            wrong = next(i for i in range(self._checked, filled) if self._strip[i] != self._pattern[i])
            # A wrong end spoils the reply before it, which is read again; at the strip's end there is no reply behind.
            self.differs_at = wrong // self._step - (wrong % self._step < len(END))
            return False
        self._checked = filled
        return True

    def given_back(self) -> bytes:
        """The stream as it came, from the first byte of reply `differs_at` on."""
        assert self.differs_at is not None, "every reply is as it must be"
        start = self.differs_at * self._period
        place = self.differs_at * self._parts
        skipped = start - self._offsets[place]
        return b"".join(self._views[place:])[skipped : self.received - self._offsets[place]]
