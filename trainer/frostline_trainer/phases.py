"""Progress of the training thread: which phase of which step it is in, and how long each phase takes (PROTOCOLS 7)."""

import threading
import time


class PhaseClock:
    """Written by the training thread; read by the heartbeat thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._name, self._entered = "start", time.monotonic()
        self._parts: dict[str, float] = {}
        self._means: dict[str, float] = {}

    def enter(self, name: str) -> None:
        now = time.monotonic()
        with self._lock:
            self._parts[self._name] = self._parts.get(self._name, 0.0) + now - self._entered
            self._name, self._entered = name, now

    def now(self) -> tuple[str, float]:
        """The phase and the seconds since it was entered."""
        with self._lock:
            return self._name, time.monotonic() - self._entered

    def take_parts(self) -> dict[str, float]:
        """Seconds by phase since the last call."""
        with self._lock:
            parts, self._parts = self._parts, {}
            for name, seconds in parts.items():
                self._means[name] = 0.9 * self._means.get(name, seconds) + 0.1 * seconds
        return {name: round(seconds, 6) for name, seconds in parts.items()}

    def means(self) -> dict[str, float]:
        """Rolling mean seconds a step, by phase."""
        with self._lock:
            return dict(self._means)
