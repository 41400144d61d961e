"""traces.jsonl: begin and end of each computation of a few steps, for the report."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from frostline_contract.statistics import StepTrace
from frostline_controller.run.journal import Journal, uncancelled


class TraceLog:
    """One line for each traced step and pipeline rank, written once."""

    def __init__(self, path: Path, may_write: Callable[[], None] = lambda: None) -> None:
        self._journal = Journal(path, may_write)
        self._order = asyncio.Lock()
        self._known = {(line["generation"], line["step"], line["pp_rank"]) for line in self._journal.lines()}

    def close(self) -> None:
        """Close traces.jsonl; nothing can be appended any more."""
        self._journal.close()

    async def take(self, traces: Sequence[StepTrace]) -> None:
        """Append the new traces; they are durable on return. Raises OSError."""
        if traces:
            await uncancelled(self._take(traces))

    async def _take(self, traces: Sequence[StepTrace]) -> None:
        async with self._order:
            fresh = {(one.generation, one.step, one.pp_rank): one for one in traces}
            fresh = {key: one for key, one in fresh.items() if key not in self._known}
            await self._journal.append([one.model_dump() for one in fresh.values()])
            self._known |= fresh.keys()
