"""A worker's own TCPStore: the rendezvous of each generation whose global rank 0 this worker is.

Training does not notice a dead store, since formed groups do not need it. But the next plan would name it, and its participants
could not meet. So the worker polls its store, and opens another one if the store does not answer.
"""

import logging
import threading
from collections.abc import Callable

from frostline_trainer.transport.collectives import open_store, store_answers

log = logging.getLogger(__name__)
ASK_EVERY_SECONDS = 5.0
TRIES = 2
"""Polls in a row without an answer after which a store counts as dead; one may fail because the machine stood still."""


class OwnStore:
    """The store and its port. A store that was replaced is kept open for participants that still use it."""

    def __init__(self, host: str, ask_every_seconds: float = ASK_EVERY_SECONDS) -> None:
        self._host, self._ask_every_seconds = host, ask_every_seconds
        store, self.port = open_store(host)
        self._stores = [store]
        self._pings = self._answers()
        self._stopping = threading.Event()

    def watch(self, report: Callable[[int, int], bool]) -> None:
        """Poll the store from a thread.

        Args:
            report: called with (old port, new port) of a replaced store until it returns True.
        """
        if not self._pings:
            log.warning("the store of this torch does not answer a ping: it is not watched")
            return
        threading.Thread(target=self._watch, args=(report,), name="own-store", daemon=True).start()

    def stop(self) -> None:
        """End the polling thread; the store itself stays open as long as this process."""
        self._stopping.set()

    def _watch(self, report: Callable[[int, int], bool]) -> None:
        unreported: list[tuple[int, int]] = []
        while not self._stopping.wait(self._ask_every_seconds):
            if not self._answers():
                unreported += self._replace()
            while unreported and report(*unreported[0]):
                del unreported[0]

    def _answers(self) -> bool:
        return any(store_answers(self._host, self.port) for _ in range(TRIES))

    def _replace(self) -> list[tuple[int, int]]:
        """Open another store. Returns [(old port, new port)], or [] if none can be opened now."""
        dead = self.port
        try:
            store, self.port = open_store(self._host)
        except (OSError, RuntimeError) as error:
            log.warning("the store at port %d does not answer, and no other one can be opened: %s", dead, error)
            return []
        self._stores.append(store)
        log.warning("the store at port %d does not answer; another one is open at port %d", dead, self.port)
        return [(dead, self.port)]
