"""How far a device has come in what it was given to do, and what each phase took it (docs/protocols.md 7.6).

The training thread leaves a mark wherever it enters a phase, and where its work waits for other members or has done so
(`transport.waiting`). Two readers follow the trail: the training thread behind a fence, for the device's seconds; and the thread
that sends heartbeats, for the phase in which the device is by now and whether it computes there or waits for others. A device
that is not behind its thread leaves no trail: the thread's own place and times say it all.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from frostline_contract.phases import Phase
from frostline_trainer.step.device_clock import DeviceClock, Mark
from frostline_trainer.transport.waiting import waits_of

MARKS_MAX = 256
"""So many are kept before those that the device has passed are read, also where no fence comes: an evaluation has many tiles."""


@dataclass(frozen=True)
class Place:
    """Where a device is. waiting: it has nothing of its own to do before something comes from other members. seconds: since it
    was last seen to come on, or was given what it does now.
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

    phase, waiting: of what comes after the mark. given_at: by `time.monotonic`, the earliest that it can have begun.
    """

    mark: Mark
    phase: Phase
    waiting: bool
    given_at: float


class Trail:
    """Written by the training thread. clock: asks for the device's clock, which a planned fault may replace."""

    def __init__(self, clock: Callable[[], DeviceClock]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._footprints: list[_Footprint] = []
        self._passed = 0
        self._came_on = (-1, time.monotonic())
        self._spent: dict[Phase, Spent] = {}

    @property
    def is_left(self) -> bool:
        """Whether the device runs behind its thread."""
        return self._clock().runs_behind

    def enter(self, phase: Phase) -> None:
        """The calling thread begins to give the device a phase's work."""
        if self.is_left:
            waits_of(threading.get_ident()).on_device = self
            self._leave(phase, waiting=False)

    def wait(self, waiting: bool) -> None:
        """What the device is given from here on waits for other members, or does not any more."""
        if self._footprints:
            self._leave(self._footprints[-1].phase, waiting)

    def mark(self) -> Mark:
        """The end of what the device was given so far: it is behind its thread until it has come there."""
        return self._leave(self._footprints[-1].phase if self._footprints else Phase.BETWEEN, waiting=False)

    def forget(self) -> None:
        """What the device was given comes to nothing: its generation is over."""
        with self._lock:
            self._footprints, self._passed = [], 0
            self._came_on = (-1, time.monotonic())

    def take(self) -> dict[Phase, Spent]:
        """What was read since the last call, by phase."""
        spent, self._spent = self._spent, {}
        return spent

    def place(self) -> Place | None:
        """Where the device is, asked by any thread; None where it is not behind its thread, or says nothing any more."""
        with self._lock:
            try:
                reached = self._reached()
            except RuntimeError:
                return None  # the training thread will have the same error, and the process ends by it
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
        """The newest footprint that the device has come to; -1: none."""
        reached = -1
        while reached + 1 < len(self._footprints) and self._footprints[reached + 1].mark.query():
            reached += 1
        return reached

    def read(self) -> None:
        """Add up what lies behind the device, and keep the trail from its newest place on."""
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
