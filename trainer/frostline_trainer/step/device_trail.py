"""The trail: marks that show how far a device has come in its queued work, and its seconds in each phase (docs/protocols.md 7.6).

The training thread sets a mark whenever it enters a phase, and where queued work begins or ends to wait for other members
(`transport.waiting`). Two threads read the trail: the training thread behind a fence, for the device's seconds; and the heartbeat
thread, for the phase in which the device is now, and whether it computes there or waits for others. A device that does not run
behind its thread (a CPU) has no trail: the thread's own phase and times are enough.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from frostline_contract.phases import Phase
from frostline_trainer.step.device_clock import DeviceClock, Mark
from frostline_trainer.transport.waiting import waits_of

MARKS_MAX = 256
"""Marks that are kept before passed ones are read even without a fence: an evaluation has many tiles and no fence between."""


@dataclass(frozen=True)
class Place:
    """Where a device is in its queue of work.

    Attributes:
        phase: The phase whose work it does.
        waiting: Whether it is blocked on a message of other members.
        seconds: Since it was last seen to pass a mark, or since its current work was queued if that was later.
    """

    phase: Phase
    waiting: bool
    seconds: float


@dataclass
class Spent:
    """A device's seconds in one phase, and how much of them it waited for other members."""

    seconds: float = 0.0
    waiting: float = 0.0


@dataclass(frozen=True)
class _Footprint:
    """A mark of the trail, with the phase that begins at it.

    phase, waiting: of the work behind the mark. given_at: when that work was queued, by `time.monotonic`.
    """

    mark: Mark
    phase: Phase
    waiting: bool
    given_at: float


class Trail:
    """The trail of one device; written by the training thread, read by any.

    clock: called for the device's clock whenever it is needed, since a planned fault may replace the clock.
    """

    def __init__(self, clock: Callable[[], DeviceClock]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._footprints: list[_Footprint] = []
        self._passed = 0
        self._came_on = (-1, time.monotonic())
        self._spent: dict[Phase, Spent] = {}

    @property
    def is_left(self) -> bool:
        """Whether there is a trail: whether the device runs behind its thread."""
        return self._clock().runs_behind

    def enter(self, phase: Phase) -> None:
        """Mark that the calling thread begins to queue a phase's work."""
        if self.is_left:
            waits_of(threading.get_ident()).on_device = self
            self._leave(phase, waiting=False)

    def wait(self, waiting: bool) -> None:
        """Mark that the work queued from here on waits for other members, or no longer does."""
        if self._footprints:
            self._leave(self._footprints[-1].phase, waiting)

    def mark(self) -> Mark:
        """A mark at the end of the work queued so far. Until the device reaches it, the device is behind its thread."""
        return self._leave(self._footprints[-1].phase if self._footprints else Phase.BETWEEN, waiting=False)

    def forget(self) -> None:
        """Drop the trail: the queued work belongs to a generation that is over."""
        with self._lock:
            self._footprints, self._passed = [], 0
            self._came_on = (-1, time.monotonic())

    def take(self) -> dict[Phase, Spent]:
        """The device's seconds by phase that were read since the last call."""
        spent, self._spent = self._spent, {}
        return spent

    def place(self) -> Place | None:
        """Where the device is, for any thread; None if it is not behind its thread, or has failed."""
        with self._lock:
            try:
                reached = self._reached()
            except RuntimeError:
                return None  # the training thread will get the same error, which ends the process
            if reached == len(self._footprints) - 1:
                self._came_on = (self._passed + reached, time.monotonic())
                return None
            if self._came_on[0] != self._passed + reached:
                self._came_on = (self._passed + reached, time.monotonic())
            at = self._footprints[max(reached, 0)]
            return Place(at.phase, at.waiting, time.monotonic() - max(self._came_on[1], at.given_at))

    def _leave(self, phase: Phase, waiting: bool) -> Mark:
        footprint = _Footprint(self._clock().mark(), phase, waiting, time.monotonic())
        with self._lock:
            self._footprints.append(footprint)
        if len(self._footprints) > MARKS_MAX:
            self.read()
        return footprint.mark

    def _reached(self) -> int:
        """Index of the newest footprint that the device has reached; -1: none."""
        reached = -1
        while reached + 1 < len(self._footprints) and self._footprints[reached + 1].mark.query():
            reached += 1
        return reached

    def read(self) -> None:
        """Add up the seconds between marks that the device has passed, and drop these marks but the newest."""
        with self._lock:
            reached = self._reached()
            behind = self._footprints[: reached + 1]
            if reached > 0:
                self._footprints, self._passed = self._footprints[reached:], self._passed + reached
        clock = self._clock()
        for one, following in zip(behind, behind[1:], strict=False):
            spent = self._spent.setdefault(one.phase, Spent())
            seconds = clock.seconds(one.mark, following.mark)
            spent.seconds += seconds
            spent.waiting += seconds if one.waiting else 0.0
