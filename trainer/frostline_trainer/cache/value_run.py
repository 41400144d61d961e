"""Receives a run of replies with scattered reads: many values in one system call, each straight into its target, without a copy.

For n values of known lengths, all of Redis' reply bytes are known but the values themselves. So the next bytes of the stream are
scattered: each value into its target, and the few bytes between values (the end of one reply, the line of the next) into a buffer
called the strip. The strip is compared with the expected bytes as it fills. If they differ (a missing key, an unexpected length),
the stream from that reply on is given back, to be read reply by reply.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

VIEWS_MAX = 960
"""Limit of views in one system call; the kernel's is 1024."""
END = b"\r\n"


class ValueRun:
    """The replies to n requests in flight.

    The strip holds, for each reply, the end of the previous reply and its own line; and the last reply's end.

    Args:
        targets: the buffers of each reply, the same number for each.
    """

    def __init__(self, targets: Sequence[Sequence[memoryview]]) -> None:
        lines = [END + b"$%d\r\n" % sum(map(len, target)) for target in targets]
        self._pattern = b"".join([*lines, END])
        self._steps = [0, *accumulate(map(len, lines))]
        self._strip = strip = memoryview(bytearray(len(self._pattern)))
        strip[: len(END)] = END  # in front of the first line there is no end of a reply
        views = [strip[len(END) : self._steps[1]]]
        for number, target in enumerate(targets, start=1):
            views.extend(target)
            views.append(strip[self._steps[number] :][: len(lines[number] if number < len(lines) else END)])
        self._parts = len(targets[0]) + 1
        self._views = views
        self._offsets = [0, *accumulate(map(len, views))]
        self.total = self._offsets[-1]
        self.received = self._checked = 0
        self.differs_at: int | None = None

    @property
    def missing(self) -> int:
        """Number of bytes still to be received."""
        return self.total - self.received

    def room(self) -> list[memoryview]:
        """The buffers for the next bytes."""
        place, within = self._place()
        return [self._views[place][within:], *self._views[place + 1 : place + VIEWS_MAX]]

    def note(self, count: int) -> bool:
        """Check `count` newly received bytes. False if they are not as expected: `differs_at` is the first reply that differs.

        A partly received reply differs as soon as it cannot become the expected one, so that no read waits for bytes that Redis
        does not send.
        """
        self.received += count
        filled = self._filled()
        if self._strip[self._checked : filled] != self._pattern[self._checked : filled]:
            wrong = next(i for i in range(self._checked, filled) if self._strip[i] != self._pattern[i])
            # A wrong end belongs to the reply before it, which is read again; behind the strip's end there is no reply.
            number = bisect_right(self._steps, wrong) - 1
            self.differs_at = number - (wrong - self._steps[number] < len(END))
            return False
        self._checked = filled
        return True

    def given_back(self) -> bytes:
        """The received bytes from the line of reply `differs_at` on."""
        assert self.differs_at is not None, "every reply is as it must be"
        place = self.differs_at * self._parts
        skipped = len(END) if self.differs_at else 0  # the previous reply is complete, and its end precedes this line
        return b"".join(self._views[place:])[skipped : self.received - self._offsets[place]]

    def _place(self) -> tuple[int, int]:
        """The view into which the next byte goes, and the offset in it."""
        place = bisect_right(self._offsets, self.received) - 1
        return place, self.received - self._offsets[place]

    def _filled(self) -> int:
        """Number of received bytes of the strip."""
        if not self.missing:
            return len(self._pattern)
        place, within = self._place()
        number, part = divmod(place, self._parts)
        if part:  # inside a value: the strip is filled up to the value's line
            return self._steps[number + 1]
        return self._steps[number] + within + (0 if number else len(END))
