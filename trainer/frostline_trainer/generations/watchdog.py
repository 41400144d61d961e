"""The watchdog: interrupts process groups from a thread of its own.

With a dead NCCL peer the training thread hangs (docs/design.md 12.2), so another thread has to act. It is not the heartbeat or
the control stream's thread, since aborting NCCL may block. The controller decides from heartbeats that a peer is dead, and sends
a fence; the watchdog then interrupts every group that it guards, so that the training thread's blocked call ends with an error.
"""

import logging
import threading
from typing import Protocol

log = logging.getLogger(__name__)


class Interruptible(Protocol):
    """A process group, or anything that blocks on peers. Interrupting twice is harmless; it may block for a while."""

    def interrupt(self) -> None:
        """Let calls that block in it end with RuntimeError, soon; callable from any thread."""


class Watchdog:
    """Guards the groups of running and prepared generations, by a name that the caller chooses for each set."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guarded: dict[object, tuple[Interruptible, ...]] = {}
        self._due: list[tuple[Interruptible, ...]] = []
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._thread.start()

    def guard(self, key: object, groups: tuple[Interruptible, ...]) -> None:
        """Register groups under `key`, in place of those registered before."""
        with self._lock:
            self._guarded[key] = groups

    def release(self, key: object) -> None:
        """Drop the references to closed groups (gloo closes sockets with the last reference)."""
        with self._lock:
            self._guarded.pop(key, None)

    def interrupt(self, *keys: object) -> None:
        """Interrupt the groups under these keys (without keys: all), soon, from the watchdog's thread. Returns at once."""
        with self._lock:
            chosen = keys or tuple(self._guarded)
            self._due += [self._guarded[key] for key in chosen if key in self._guarded]
        self._wake.set()

    def stop(self) -> None:
        """End the thread; waits 5 seconds at most, so that a blocked abort does not keep the worker from ending."""
        self._stopping = True
        self._wake.set()
        self._thread.join(5.0)

    def _watch(self) -> None:
        while not self._stopping:
            self._wake.wait()
            self._wake.clear()
            with self._lock:
                due, self._due = self._due, []
            for groups in due:
                for group in groups:
                    self._interrupt(group)
            due = groups = group = ()  # no reference may outlive the interruption

    def _interrupt(self, group: Interruptible) -> None:
        try:
            group.interrupt()
        except (RuntimeError, OSError) as error:  # its peers may be gone already; the other groups must still be interrupted
            log.warning("a group was not interrupted cleanly: %s", error)
