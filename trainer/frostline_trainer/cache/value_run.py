"""Replies in a row, received straight to where they belong: many values a system call, and no copy on their way.

What a Redis sends for n values of known lengths is known but for the values themselves. So the next bytes of the stream are
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
    """The replies to n requests that are in flight. targets: each reply's buffers, as many for each.

    The strip holds, for each reply, the end of the reply before and its own line; and the last reply's end.
    """

    def __init__(self, targets: Sequence[Sequence[memoryview]]) -> None:
        lines = [END + b"$%d\r\n" % sum(map(len, target)) for target in targets]
        self._pattern = b"".join([*lines, END])
        self._steps = [0, *accumulate(map(len, lines))]
        self._strip = strip = memoryview(bytearray(len(self._pattern)))
        strip[: len(END)] = END  # in front of the first line, where no reply ends
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
        """Bytes that are yet to come."""
        return self.total - self.received

    def room(self) -> list[memoryview]:
        """Where the next bytes go."""
        place, within = self._place()
        return [self._views[place][within:], *self._views[place + 1 : place + VIEWS_MAX]]

    def note(self, count: int) -> bool:
        """So many bytes have come. False where they are not as they must be: `differs_at` is the first reply that is not.

        A reply that has arrived in part counts as soon as it cannot become what it must be: nobody waits for what was never
        promised.
        """
        self.received += count
        filled = self._filled()
        if self._strip[self._checked : filled] != self._pattern[self._checked : filled]:
            wrong = next(i for i in range(self._checked, filled) if self._strip[i] != self._pattern[i])
            # A wrong end spoils the reply before it, which is read again; at the strip's end there is no reply behind.
            number = bisect_right(self._steps, wrong) - 1
            self.differs_at = number - (wrong - self._steps[number] < len(END))
            return False
        self._checked = filled
        return True

    def given_back(self) -> bytes:
        """The stream as it came, from the line of reply `differs_at` on."""
        assert self.differs_at is not None, "every reply is as it must be"
        place = self.differs_at * self._parts
        skipped = len(END) if self.differs_at else 0  # the reply before is whole, and its end lies in front of this line
        return b"".join(self._views[place:])[skipped : self.received - self._offsets[place]]

    def _place(self) -> tuple[int, int]:
        """The view in which the next byte lies, and where there."""
        place = bisect_right(self._offsets, self.received) - 1
        return place, self.received - self._offsets[place]

    def _filled(self) -> int:
        """How much of the strip has come."""
        if not self.missing:
            return len(self._pattern)
        place, within = self._place()
        number, part = divmod(place, self._parts)
        if part:  # in a value: the strip is filled up to its line
            return self._steps[number + 1]
        return self._steps[number] + within + (0 if number else len(END))
