"""plans.jsonl: decisions, generations and their ends, each written once, also where its write is requested again."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from frostline_contract.plan import GenerationId, Plan
from frostline_controller.run.journal import Journal, uncancelled

Line = dict[str, Any]


class PlanLog:
    """Appends lines that are not there yet, so that a failed write can be repeated.

    Keeps the newest line of each decision, by (decided_in, number).
    """

    def __init__(self, path: Path, may_write: Callable[[], None] = lambda: None) -> None:
        self._journal = Journal(path, may_write)
        self._order = asyncio.Lock()
        self._plans: set[str] = set()
        self._ends: dict[str, int] = {}
        self.decisions: dict[tuple[int, int], Line] = {}
        for line in self._journal.lines():
            self._note(line)

    def close(self) -> None:
        """Close plans.jsonl; nothing can be appended any more."""
        self._journal.close()

    def end_of(self, generation: GenerationId) -> int | None:
        """Return the last step of a generation that has ended; None where it has not."""
        return self._ends.get(str(generation))

    async def append(self, lines: Sequence[Line]) -> None:
        """Write the new ones of `lines`, in order; they are durable on return. Raises OSError."""
        await uncancelled(self._append(lines))

    async def _append(self, lines: Sequence[Line]) -> None:
        async with self._order:
            fresh = [line for line in lines if self._is_new(line)]
            await self._journal.append(fresh)
            for line in fresh:
                self._note(line)

    def _is_new(self, line: Line) -> bool:
        if line["kind"] == "decision":
            known = self.decisions.get(_key(line))
            return known is None or known["void"] != line["void"]
        if line["kind"] == "plan_end":
            return self._ends.get(line["generation"]) != line["last_step"]
        return _generation(line) not in self._plans

    def _note(self, line: Line) -> None:
        if line["kind"] == "decision":
            self.decisions[_key(line)] = line
        elif line["kind"] == "plan_end":
            self._ends[line["generation"]] = line["last_step"]
        else:
            self._plans.add(_generation(line))


def _key(line: Line) -> tuple[int, int]:
    return line["decided_in"], line["number"]


def _generation(line: Line) -> str:
    return f"{line['generation']['incarnation']}.{line['generation']['counter']}"


def plan_line(plan: Plan, first_step: int) -> dict[str, object]:
    """Return a plan as a line of plans.jsonl, without the decisions, which have their own lines; workers are named by their
    ids."""
    values = plan.model_dump(mode="json", exclude={"decisions", "source_indices", "buddy_indices"})
    named = {"sources": list(plan.sources), "buddies": list(plan.buddies)}
    return {"kind": "plan", **values, **named, "first_step": first_step, "last_step": None}


def plan_end_line(generation: GenerationId, last_step: int) -> dict[str, object]:
    """Return the end of a generation as a line of plans.jsonl."""
    return {"kind": "plan_end", "generation": str(generation), "last_step": last_step}
