"""Interrupts process groups from a thread of its own: aborting NCCL may block, and neither the heartbeat nor the control
stream may wait for it (docs/design.md 12.2: a dead NCCL peer hangs, so somebody beside the blocked training thread has to act).

Who decides that a peer is dead is the controller: it sees heartbeats, and answers with a fence. This thread carries it out:
every group that it guards is interrupted, so that whatever the training thread is blocked in ends with an error.
"""

import logging
import threading
from typing import Protocol

log = logging.getLogger(__name__)


class Interruptible(Protocol):
    """A process group, or anything that blocks on peers. Interrupting twice is harmless; it may block for a while."""

    def interrupt(self) -> None:
        """End whatever blocks in it, soon, with RuntimeError; callable from any thread."""


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
        """Interrupt these with `key` from now on; replaces what the key named before."""
        with self._lock:
            self._guarded[key] = groups

    def release(self, key: object) -> None:
        """The groups are closed: refer to them no more (gloo closes sockets with the last reference)."""
        with self._lock:
            self._guarded.pop(key, None)

    def interrupt(self, *keys: object) -> None:
        """Interrupt what these keys name (nothing named: everything), soon, from the watchdog's thread. Returns at once."""
        with self._lock:
            chosen = keys or tuple(self._guarded)
            self._due += [self._guarded[key] for key in chosen if key in self._guarded]
        self._wake.set()

    def stop(self) -> None:
        """End the thread, waited for 5 seconds at most: an abort that blocks must not keep the worker from ending."""
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
        except (RuntimeError, OSError) as error:  # its peers are gone already: the next group must still be interrupted
            log.warning("a group was not interrupted cleanly: %s", error)
