"""Lineages: which steps of a run survive its rollbacks and restores, and which of two steps is newer. The rules stand here only.

A lineage is an unbroken history of steps. Each rollback and each restore from a checkpoint opens a new lineage, which starts at a
committed step and undoes all later steps of earlier lineages. Files are append-only, and late records of a lineage may follow the
line that ends it, so the rule compares numbers and never the order of lines.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from frostline_contract.decision import Decision
from frostline_contract.reading import read_as
from frostline_contract.record import Frozen

RESTORE, ROLLBACK = "restore", "rollback"


class Place(NamedTuple):
    """A step of a lineage. Places are ordered by lineage, then step: every step of a newer lineage is newer."""

    lineage: int
    step: int


class LineageStart(Frozen):
    """A lineage and the committed step that it starts from.

    Attributes:
        starts_at_step: that step.
        kind: "start", "restore" or "rollback".
        distrusts: whether results of older lineages beyond that step are or may be wrong: they are neither used nor compared with
            any more.
    """

    lineage: int
    starts_at_step: int
    kind: str = "start"
    distrusts: bool = False

    def takes_back(self, step: int) -> bool:
        """Whether this lineage undoes a result that an older lineage computed up to `step`."""
        return step > self.starts_at_step


@dataclass(frozen=True)
class Cuts:
    """The starts of a run's lineages."""

    starts: tuple[LineageStart, ...] = ()

    def survives(self, lineage: int, step: int) -> bool:
        """Whether a result computed in `lineage` up to `step` still counts: no later lineage starts below that step."""
        return self.survives_where(lineage, lambda start: step)

    def survives_where(self, lineage: int, needed: Callable[[LineageStart], int]) -> bool:
        """As `survives`, for a result that needs different steps depending on the later lineage.

        Args:
            lineage: the lineage of the result.
            needed: returns, for the start of a later lineage, the last step that has to survive that start.
        """
        return not any(start.takes_back(needed(start)) for start in self.starts if start.lineage > lineage)

    def restores(self) -> "Cuts":
        """The restores alone. Steps that a rollback undoes have happened; steps that a restore undoes were never published."""
        return Cuts(tuple(start for start in self.starts if start.kind == RESTORE))

    def distrusting(self) -> "Cuts":
        """The starts that distrust the steps that they undo."""
        return Cuts(tuple(start for start in self.starts if start.distrusts))


def is_before_freeze(checkpoint: Place, reached: int, decisions: Iterable[Decision]) -> bool:
    """Whether a checkpoint is one to which the freeze after its step can be rolled back.

    It belongs to the lineage in which that freeze was decided or to a later one that the state has been through: the checkpoint
    of that step in an older lineage was undone.

    Args:
        checkpoint: the checkpoint's step in its lineage.
        reached: the lineage of the state that goes back.
        decisions: the decisions that the state has adopted.
    """
    freezes = [one for one in decisions if one.effective_step == checkpoint.step + 1 and one.kind == "freeze" and not one.void]
    return max((one.lineage for one in freezes), default=0) <= checkpoint.lineage <= reached


def lineage_above(*known: int) -> int:
    """The number of a lineage that opens now: above every known one, so that none is opened twice.

    known: all lineages ever planned, started or not.
    """
    return max(known) + 1


@dataclass(frozen=True)
class RecordLines:
    """The lines of metrics.jsonl.

    Attributes:
        surviving: one record for each step, in order.
        undone: records of undone steps, in order.
        cuts: the lineages' starts, which decide what survives.
    """

    surviving: tuple[dict[str, Any], ...]
    undone: tuple[dict[str, Any], ...]
    cuts: Cuts


def split_records(lines: Iterable[dict[str, Any]], where: str) -> RecordLines:
    """Separate the records that survive from those that were undone. Of several lines with one (lineage, step) the first counts.

    Args:
        lines: those of metrics.jsonl.
        where: the source of the lines, for messages.

    Raises:
        ValueError: a line is neither a record nor a lineage's start.
    """
    starts: list[LineageStart] = []
    records: dict[Place, dict[str, Any]] = {}
    for line in lines:
        if "starts_at_step" in line:
            starts.append(read_as(LineageStart, line, where))
        else:
            records.setdefault(_place_of(line, where), line)
    cuts = Cuts(tuple(starts))
    surviving = {place.step: record for place, record in sorted(records.items()) if cuts.survives(*place)}
    undone = tuple(record for place, record in sorted(records.items()) if not cuts.survives(*place))
    return RecordLines(tuple(surviving[step] for step in sorted(surviving)), undone, cuts)


def _place_of(line: dict[str, Any], where: str) -> Place:
    lineage, step = line.get("lineage"), line.get("step")
    if not (isinstance(lineage, int) and isinstance(step, int)):
        raise ValueError(f"{where} has a record without lineage and step, two whole numbers: {str(line)[:100]}")
    return Place(lineage, step)
