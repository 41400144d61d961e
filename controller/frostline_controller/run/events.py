"""events.jsonl: the events of the run, for people and for the report. One line for each event, written once, stamped by the
controller."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frostline_controller.run.journal import Journal, uncancelled

log = logging.getLogger(__name__)

KINDS = frozenset(
    ("freeze", "unfreeze", "reshape", "join", "leave", "failure", "cache", "guard", "checkpoint", "start", "end", "command")
) | {"checkpoint_failed", "decision_void", "fault", "hang", "straggler", "cannot_start", "wrong_bits",
     "quarantine", "out_of_memory", "memory_over_cap", "pause", "numerics"}  # fmt: skip


Line = dict[str, Any]


class EventLog:
    """Appends events; those with a key are written once, also over restarts of the controller.

    Attributes:
        counts: number of events so far, by kind.
        newest: the newest event of each kind.
        unsaved: why no checkpoint has been written since the last successful one; empty: no problem is known.
    """

    def __init__(self, path: Path, may_write: Callable[[], None] = lambda: None) -> None:
        self._journal = Journal(path, may_write)
        self._order = asyncio.Lock()
        self._unwritten: list[Line] = []
        self._keys: set[tuple[str, int, int]] = set()
        self.counts: Counter[str] = Counter()
        self.newest: dict[str, Line] = {}
        self.unsaved = ""
        for line in self._journal.lines():
            self._note(line)

    def close(self) -> None:
        """Close events.jsonl; nothing can be appended any more."""
        self._journal.close()

    def all(self) -> list[Line]:
        """Return every event so far, once: from the file, and those that could not be written yet.

        An event may be in the file for a moment before it is taken from those.
        """
        written = list(self._journal.lines())
        return [*written, *(line for line in self._unwritten if line not in written)]

    def holds(self, kind: str, step: int, lineage: int) -> bool:
        """Whether an event with this key was taken, by this controller or by one before."""
        return (kind, step, lineage) in self._keys

    def is_durable(self, kind: str, step: int, lineage: int) -> bool:
        """Whether an event with this key is on disk; one that waits for room there is held, and is not durable."""
        key = (kind, step, lineage)
        return self.holds(*key) and key not in map(_key, self._unwritten)

    def receive(self, kind: str, step: int, lineage: int, reason: str) -> None:
        """Take an unwritten event into account for the status: its subject may be the full disk that keeps it from being
        written."""
        if not self.holds(kind, step, lineage):
            self._follow_checkpoints(kind, reason)

    async def keep(self, line: Line) -> None:
        """Take an event of the controller's own. Where it cannot be written now (a full disk), `flush` writes it later.

        So an act is neither undone nor repeated because its line could not be written.
        """
        self._note(line)
        self._unwritten.append(line)
        try:
            await self.flush()
        except OSError as error:
            log.error("events.jsonl cannot be written, trying again kind=%s error=%s", line["kind"], error)

    async def add_once(self, line: Line) -> bool:
        """Write an event that its sender repeats until it is acknowledged; it is durable on return.

        False where its kind, step and lineage are known. Raises OSError: then it is not known.
        """
        return await uncancelled(self._write([line]))

    async def flush(self) -> None:
        """Write the events that could not be written before. Raises OSError."""
        if self._unwritten:
            await uncancelled(self._write([]))

    async def _write(self, fresh: list[Line]) -> bool:
        async with self._order:
            new = [line for line in fresh if not self.holds(*_key(line))]
            waiting = list(self._unwritten)
            await self._journal.append([*waiting, *new])
            del self._unwritten[: len(waiting)]
            for line in new:
                self._note(line)
            return bool(new)

    def _note(self, line: Line) -> None:
        self._follow_checkpoints(line["kind"], str(line.get("reason", "")))
        self._keys.add(_key(line))
        self.newest[line["kind"]] = line
        self.counts[line["kind"]] += 1

    def _follow_checkpoints(self, kind: str, reason: str) -> None:
        if kind in ("checkpoint", "checkpoint_failed"):
            self.unsaved = reason if kind == "checkpoint_failed" else ""


def event_line(kind: str, started_at: float, seconds: float = 0.0, **fields: Any) -> Line:
    """Return an event as a line of events.jsonl.

    Args:
        kind: one of `KINDS`.
        started_at: Unix time of the run's start; 0.0: not started.
        seconds: how long the event took.
        fields: further fields of the line.
    """
    assert kind in KINDS, kind
    time_seconds = round(max(0.0, time.time() - started_at), 6) if started_at else 0.0
    return {"time_seconds": time_seconds, "kind": kind, "seconds": round(seconds, 6), **fields}


def _key(line: Line) -> tuple[str, int, int]:
    return line["kind"], line.get("step", 0), line.get("lineage", 0)
