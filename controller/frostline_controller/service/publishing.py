"""The progress annotation, for people: every ten seconds, and soon after what they look for first has changed."""

import asyncio
import logging

from frostline_contract.annotations import PROGRESS
from frostline_controller.cluster.backend import Conflict
from frostline_controller.service.run import Run
from frostline_controller.service.status import progress_text

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
CHANGED_SECONDS = 1.0
"""Least time between two writes. State, generation and message change about as often as plans are written."""


class Publishing:
    """Call `advance` in every round."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._written_at = -EVERY_SECONDS
        self._written: tuple[object, ...] = ()

    async def advance(self, now: float) -> None:
        run = self._run
        first = (run.state.state, run.current.generation if run.current else None, run.message)
        if now - self._written_at < (EVERY_SECONDS if first == self._written else CHANGED_SECONDS):
            return
        # Before the attempt: where nothing can be written, the next one is ten seconds away.
        self._written_at, self._written = now, first
        try:
            await asyncio.to_thread(run.backend.patch_annotations, {PROGRESS: progress_text(run)}, {})
        except Conflict as error:  # it tests nothing, so this is a backend's own refusal
            log.warning("progress not written error=%s", error)
