"""Lineages: which steps of a run survive its rollbacks and restores. The one home of that rule.

A lineage is an unbroken history of steps. A rollback and a restore from a checkpoint open a new one, which starts at a committed
step and takes back every step of earlier lineages above it. Files are append-only, and late records of a lineage may follow the
line that cuts it, so the rule looks at numbers and never at the order of lines.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from frostline_contract.reading import read_as
from frostline_contract.record import Frozen

RESTORE, ROLLBACK = "restore", "rollback"


class LineageStart(Frozen):
    """A lineage and the committed step that it starts from. kind: "start", "restore" or "rollback".

    distrusts: what older lineages computed beyond that step is wrong, or may be: nothing of it is used or compared with any more.
    """

    lineage: int
    starts_at_step: int
    kind: str = "start"
    distrusts: bool = False

    def takes_back(self, step: int) -> bool:
        """Whether what an older lineage computed up to `step` is taken back."""
        return step > self.starts_at_step


@dataclass(frozen=True)
class Cuts:
    """The starts of a run's lineages."""

    starts: tuple[LineageStart, ...] = ()

    def survives(self, lineage: int, step: int) -> bool:
        """Whether what was computed in `lineage` up to `step` still counts: no later lineage starts below that step."""
        return self.survives_where(lineage, lambda start: step)

    def survives_where(self, lineage: int, needed: Callable[[LineageStart], int]) -> bool:
        """As `survives`, for what needs other steps of one later lineage than of another. needed: the step for such a start."""
        return not any(start.takes_back(needed(start)) for start in self.starts if start.lineage > lineage)

    def restores(self) -> "Cuts":
        """Only the restores: what a rollback takes back has happened, what a restore takes back was never published."""
        return Cuts(tuple(start for start in self.starts if start.kind == RESTORE))

    def distrusting(self) -> "Cuts":
        """Only the starts that distrust what they cut off."""
        return Cuts(tuple(start for start in self.starts if start.distrusts))


@dataclass(frozen=True)
class RecordLines:
    """The lines of metrics.jsonl. surviving: one record a step, in order. undone: records that were taken back, in order."""

    surviving: tuple[dict[str, Any], ...]
    undone: tuple[dict[str, Any], ...]
    cuts: Cuts


def split_records(lines: Iterable[dict[str, Any]], where: str) -> RecordLines:
    """Tell the records that survive from those that were taken back. Of one (lineage, step) the first line counts.

    where: what the lines are from, for people. Raises ValueError for a line that is neither a record nor a lineage's start.
    """
    starts: list[LineageStart] = []
    records: dict[tuple[int, int], dict[str, Any]] = {}
    for line in lines:
        if "starts_at_step" in line:
            starts.append(read_as(LineageStart, line, where))
        else:
            records.setdefault(_place_of(line, where), line)
    cuts = Cuts(tuple(starts))
    surviving = {step: record for (lineage, step), record in sorted(records.items()) if cuts.survives(lineage, step)}
    undone = tuple(record for key, record in sorted(records.items()) if not cuts.survives(*key))
    return RecordLines(tuple(surviving[step] for step in sorted(surviving)), undone, cuts)


def _place_of(line: dict[str, Any], where: str) -> tuple[int, int]:
    place = line.get("lineage"), line.get("step")
    if not (isinstance(place[0], int) and isinstance(place[1], int)):
        raise ValueError(f"{where} has a record without lineage and step, two whole numbers: {str(line)[:100]}")
    return place[0], place[1]
