"""events.jsonl: what happened, for people and for the report. One line an event, each once, stamped by this service."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

from frostline_controller.state.journal import Journal

KINDS = frozenset(
    ("freeze", "unfreeze", "reshape", "join", "leave", "failure", "cache", "guard", "checkpoint", "start", "end", "command")
) | {"checkpoint_failed", "decision_void", "fault", "hang", "straggler"}


class EventLog:
    """Appends events; those with a key are written once, also over restarts of the controller. counts: events so far, by kind."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)
        self._keys: set[tuple[str, int, int]] = set()
        self.counts: Counter[str] = Counter()
        for line in self._journal.lines():
            self.counts[line["kind"]] += 1
            self._keys.add((line["kind"], line["step"], line.get("lineage", 0)))

    def close(self) -> None:
        self._journal.close()

    def all(self) -> list[dict[str, Any]]:
        """Every event so far, read from the file."""
        return list(self._journal.lines())

    def holds(self, kind: str, step: int, lineage: int) -> bool:
        return (kind, step, lineage) in self._keys

    async def add(self, kind: str, started_at: float, seconds: float = 0.0, **fields: Any) -> dict[str, Any]:
        """Write one event; it is durable when this returns. started_at: Unix time of the run's start."""
        assert kind in KINDS, kind
        line = {
            "time_seconds": round(max(0.0, time.time() - started_at), 6) if started_at else 0.0,
            "kind": kind,
            "seconds": round(seconds, 6),
            **fields,
        }
        self._keys.add((kind, fields.get("step", 0), fields.get("lineage", 0)))
        await self._journal.append([line])
        self.counts[kind] += 1
        return line
