"""The phase clock: which phase of a step the training thread is in, and how long each phase takes (docs/protocols.md 7.1).

The rolling 99th percentile is exact (nearest rank) over a phase's last WINDOW durations. Unlike a sketch of the whole past (P2,
t-digest), a window forgets, which a run that reshapes and freezes needs. It is right from the first sample on, and costs one
append in a step, since it is sorted only when a heartbeat asks. Few durations say little about a tail: with fewer than FEW of
them the estimate is twice the longest.

On a GPU, which runs behind the thread, the thread's durations only say how long it queued work and waited at fences. There the
parts of a step and a member's own work are measured in the device's seconds (`step.device_trail`); deadlines follow from the
longer of both.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from frostline_contract.phases import OWN_WORK, Phase
from frostline_trainer.step.device_trail import Spent, Trail
from frostline_trainer.step.spending import Spending
from frostline_trainer.transport.waiting import waits_of

WINDOW = 512
"""Durations kept of each phase: 4 KiB a phase. Above 100 samples a single outlier no longer moves the percentile."""

FEW = 20


@dataclass(frozen=True)
class Now:
    """The phase that a worker is in, and for how long.

    seconds: since the phase was entered, or since `moved` was last called. waiting_seconds: since the thread has been blocked on
    other members; 0: it is not.
    """

    phase: Phase
    seconds: float
    waiting_seconds: float


class PhaseClock:
    """Measures phases; written by the training thread, read by the heartbeat thread.

    hook: called in the training thread with each phase right after it was entered (planned faults). trail: of the worker's
    device; None before there is one.
    """

    def __init__(self) -> None:
        self.hook: Callable[[Phase], None] | None = None
        self.trail: Trail | None = None
        self._lock = threading.Lock()
        self._name, self._entered = Phase.START, time.monotonic()
        self._moved = self._counted = self._entered
        self._thread = threading.get_ident()
        self._waits = waits_of(self._thread)
        self._waited = self._waits.total
        self._parts: dict[str, float] = {}
        self._means: dict[str, float] = {}
        self._windows: dict[str, deque[float]] = {}
        self._own = 0.0
        self._busy = 0.0
        self._spending = Spending()

    def admitted(self) -> None:
        """Begin to account for this worker's time; called when the run has admitted the worker."""
        with self._lock:
            self._spending = Spending()
            self._counted = time.monotonic()

    def stand_by(self) -> None:
        """Account the time from now on as a spare worker's, since the newest plan does not name this worker. Idempotent; the next
        phase that is entered ends it."""
        with self._lock:
            if self._spending.standing_by:
                return
            now = time.monotonic()
            self._spending.add(self._name, now - self._counted, 0.0)
            self._spending.standing_by, self._counted = True, now

    def enter(self, name: Phase) -> None:
        """Enter a phase: count the time of the previous one, and let the new phase's deadline run from now on.

        Called by the training thread. Raises any exception of the plug's hook or the device's trail.
        """
        now, thread = time.monotonic(), threading.get_ident()
        with self._lock:
            self._end_phase(now)
            self._spending.standing_by = False
            if name == Phase.RECOVERY:
                self._spending.lose()
            self._name, self._entered, self._moved, self._counted = name, now, now, now
            if thread != self._thread:
                self._thread, self._waits = thread, waits_of(thread)
            self._waited = self._waits.total
        if self.trail is not None:
            self.trail.enter(name)
        if self.hook is not None:
            self.hook(name)

    def moved(self) -> None:
        """Note progress in a long phase (a tile scored, a file's piece written): its deadline runs anew. For any thread."""
        with self._lock:
            self._moved = time.monotonic()

    def _end_phase(self, now: float) -> None:
        name, seconds = self._name, now - self._entered
        self._parts[name] = self._parts.get(name, 0.0) + seconds
        self._window(name).append(seconds)
        waited = self._waits.total - self._waited
        self._spending.add(name, now - self._counted, waited)
        if name in OWN_WORK:
            self._own += max(0.0, seconds - waited)

    def _window(self, name: str) -> deque[float]:
        window = self._windows.get(name)
        if window is None:
            window = self._windows[name] = deque(maxlen=WINDOW)
        return window

    def new_generation(self) -> None:
        """Clear percentiles and means: a new generation has another shape, and other durations."""
        if self.trail is not None:
            self.trail.take()
        with self._lock:
            self._windows.clear()
            self._means.clear()
            self._own = self._busy = 0.0

    def now(self) -> Now:
        """The current phase, the seconds since the last progress in it, and for how long its thread has waited for others."""
        with self._lock:
            now, since = time.monotonic(), self._waits.since
            return Now(self._name, now - self._moved, now - since if since else 0.0)

    def take_parts(self) -> dict[str, float]:
        """Seconds by phase since the last call: called once a step."""
        with self._lock:
            self._take_the_devices_word()
            parts, self._parts = self._parts, {}
            for name, seconds in parts.items():
                self._means[name] = 0.9 * self._means.get(name, seconds) + 0.1 * seconds
            if self._own:
                self._busy = 0.9 * (self._busy or self._own) + 0.1 * self._own
                self._own = 0.0
        return {name: round(seconds, 6) for name, seconds in parts.items()}

    def _take_the_devices_word(self) -> None:
        """Replace the thread's seconds of the step by the device's, if its trail was read since the last call."""
        spent = self.trail.take() if self.trail is not None else {}
        self._spending.settle(spent)
        if not spent:
            return
        self._own = 0.0
        for name, one in spent.items():
            self._parts[name] = one.seconds
            self._window(name).append(one.seconds)
            if name in OWN_WORK:
                self._own += one.seconds - one.waiting

    def spent(self) -> dict[str, Spent]:
        """Seconds since the admission by phase, up to now."""
        with self._lock:
            sums, now, since = self._spending.so_far(), time.monotonic(), self._waits.since
            going_on = sums.setdefault(Phase.SPARE if self._spending.standing_by else self._name, Spent())
            seconds, waiting = now - self._counted, self._waits.total - self._waited + (now - since if since else 0.0)
            going_on.seconds += seconds
            going_on.waiting += min(waiting, seconds)
            return sums

    def means(self) -> dict[str, float]:
        """Rolling mean seconds a step, by phase."""
        with self._lock:
            return dict(self._means)

    def busy_seconds(self) -> float:
        """Rolling mean seconds of a step's own work, without waiting for other members; 0: no step yet in this generation."""
        with self._lock:
            return self._busy

    def p99(self) -> dict[str, float]:
        """Rolling 99th percentile of the seconds of each phase that was finished in this generation."""
        with self._lock:
            windows = {name: list(window) for name, window in self._windows.items()}
        return {name: tail(durations) for name, durations in windows.items()}


def tail(durations: list[float]) -> float:
    """The 99th percentile, or twice the longest of few durations; seconds."""
    return percentile(durations, 0.99) if len(durations) >= FEW else 2 * max(durations)


def percentile(durations: list[float], share: float) -> float:
    """The nearest-rank percentile: the least value that at least `share` of all values do not exceed."""
    place = -int(-share * len(durations) // 1)
    return sorted(durations)[place - 1]
