"""The progress annotation, for people. Written every ten seconds, and soon after a change of state, generation or message."""

import asyncio
import logging

from frostline_contract.annotations import PROGRESS
from frostline_controller.cluster.backend import ClusterBackend, Conflict
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.store import RunStore
from frostline_controller.serving.status import progress_text

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
CHANGED_SECONDS = 1.0
"""Least time between two writes. State, generation and message change about as often as plans are made."""


class ProgressWriter:
    """Call `advance` in every round."""

    def __init__(self, facts: RunFacts, store: RunStore, backend: ClusterBackend) -> None:
        self._facts, self._store, self._backend = facts, store, backend
        self._written_at = -EVERY_SECONDS
        self._written: tuple[object, ...] = ()

    async def advance(self, now: float) -> None:
        """Write the annotation where it is due. A refusal of the API server does not disturb the round."""
        facts = self._facts
        first = (facts.state.state, facts.current.generation if facts.current else None, facts.message)
        if now - self._written_at < (EVERY_SECONDS if first == self._written else CHANGED_SECONDS):
            return
        # Before the attempt: where nothing can be written, the next one is ten seconds away.
        self._written_at, self._written = now, first
        try:
            await asyncio.to_thread(self._backend.patch_annotations, {PROGRESS: progress_text(facts, self._store)}, {})
        except Conflict as error:  # it tests nothing, so this is a backend's own refusal
            log.warning("progress not written error=%s", error)
