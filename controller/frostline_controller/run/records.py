"""Records and statistics of stable steps: made durable first, then acknowledged, each once (docs/protocols.md 6.1)."""

import asyncio
import math
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from frostline_contract.intervals import DecisionCalendar
from frostline_contract.lineage import Cuts, LineageStart, Place
from frostline_contract.statistics import IntervalStatistics, StepRecord
from frostline_controller.ledger.carried import Carried
from frostline_controller.ledger.steps import Steps
from frostline_controller.run.journal import Journal, uncancelled

COMPARED_RECORDS = 4096
"""How many of the newest records are kept for the comparison with a repeated step."""


class ResultsDiffer(Exception):
    """A step repeated under the same numerics has another loss: the promise of docs/protocols.md 1.1 is broken, the run stops."""


class RecordLog:
    """metrics.jsonl: one line for each step, unique by (lineage, step), and a separate line where a lineage starts.

    Args:
        path: the file.
        may_write: as in `Journal`.

    Attributes:
        steps: sums over the records, for the ledger.
        carried: the bytes that workers sent and hold.
    """

    def __init__(self, path: Path, may_write: Callable[[], None] = lambda: None) -> None:
        self._journal = Journal(path, may_write)
        self._order = asyncio.Lock()
        self._complete: dict[int, int] = {}
        self._beyond: dict[int, set[int]] = {}
        self._losses: OrderedDict[tuple[int, str], float] = OrderedDict()
        self._distrusting: set[int] = set()
        self._firsts: dict[str, int] = {}
        self.lineage = 0
        self.latest: StepRecord | None = None
        self.steps, self.carried = Steps(), Carried()
        for line in self._journal.lines():
            if "starts_at_step" in line:
                self._start(start := LineageStart(**line))
                self._distrust(start)
            else:
                self._note(StepRecord.model_validate(line))

    def close(self) -> None:
        """Close metrics.jsonl; nothing can be appended any more."""
        self._journal.close()

    def first_of(self, generation: str) -> int | None:
        """Return the first recorded step that a generation computed; None where there is none."""
        return self._firsts.get(generation)

    def durable_step(self, lineage: int, starts_at: int) -> int:
        """Return the step up to which all records of a lineage are on disk; the step that it starts from where it has none
        yet."""
        return self._complete.get(lineage, starts_at)

    async def take(self, records: list[StepRecord], lineages: tuple[LineageStart, ...], exact: bool) -> list[StepRecord]:
        """Append the records that are new and not undone; they are durable on return, in step order.

        Of a lineage that a restore ended, only steps up to the restored one are taken. Calls run one after the other, each to its
        end even where its caller is cancelled, so that no record counts as held that is not on disk. Raises ResultsDiffer,
        OSError.
        """
        return await uncancelled(self._take(records, lineages, exact))

    async def _take(self, records: list[StepRecord], lineages: tuple[LineageStart, ...], exact: bool) -> list[StepRecord]:
        async with self._order:
            return await self._take_in_turn(records, lineages, exact)

    async def _take_in_turn(self, records: list[StepRecord], lineages: tuple[LineageStart, ...], exact: bool) -> list[StepRecord]:
        for start in lineages:
            self._distrust(start)
        lines, opened, restores = [], self.lineage, Cuts(lineages).restores()
        fresh: dict[Place, StepRecord] = {}
        for record in sorted(records, key=lambda record: record.place):
            known = record.place in fresh or self._holds(record)
            if known or not restores.survives(record.lineage, record.step):
                continue
            if exact:
                self._compare(record)
            lines += [_lineage_line(start) for start in lineages if opened < start.lineage <= record.lineage]
            opened = max(opened, record.lineage)
            lines.append(record.model_dump())
            fresh[record.place] = record
        await self._journal.append(lines)
        for start in lineages:
            if start.lineage <= opened:
                self._start(start)
        for record in fresh.values():
            self._note(record)
        return list(fresh.values())

    def _distrust(self, start: LineageStart) -> None:
        """Forget the losses of steps that are repeated because their results were wrong. Done once for each lineage."""
        if start.distrusts and start.lineage not in self._distrusting:
            self._distrusting.add(start.lineage)
            for key in [key for key in self._losses if start.takes_back(key[0])]:
                del self._losses[key]

    def _start(self, start: LineageStart) -> None:
        self.lineage = max(self.lineage, start.lineage)
        self._complete.setdefault(start.lineage, start.starts_at_step)
        self.steps.start(start)

    def _holds(self, record: StepRecord) -> bool:
        return record.step <= self._complete.get(record.lineage, 0) or record.step in self._beyond.get(record.lineage, ())

    def _note(self, record: StepRecord) -> None:
        self.steps.add(record)
        self.carried.add(record)
        self._firsts[record.generation] = min(record.step, self._firsts.get(record.generation, record.step))
        beyond = self._beyond.setdefault(record.lineage, set())
        beyond.add(record.step)
        step = self._complete.setdefault(record.lineage, 0)
        while step + 1 in beyond:
            step += 1
            beyond.discard(step)
        self._complete[record.lineage] = step
        self.lineage = max(self.lineage, record.lineage)
        if self.latest is None or record.place >= self.latest.place:
            self.latest = record
        if record.numerics_hash:
            self._losses[(record.step, record.numerics_hash)] = record.loss
            while len(self._losses) > COMPARED_RECORDS:
                self._losses.popitem(last=False)

    def _compare(self, record: StepRecord) -> None:
        known = self._losses.get((record.step, record.numerics_hash)) if record.numerics_hash else None
        if known is not None and _bits(known) != _bits(record.loss):
            raise ResultsDiffer(
                f"step {record.step} of lineage {record.lineage} has loss {record.loss!r}; it had {known!r} before, "
                f"under the same numerics {record.numerics_hash[:12]}"
            )


class StatisticsLog:
    """statistics.jsonl: one line for each interval, unique by (lineage, number). All are kept, since policies read all of
    them."""

    def __init__(self, path: Path, may_write: Callable[[], None] = lambda: None) -> None:
        self._journal = Journal(path, may_write)
        self._order = asyncio.Lock()
        self._known: dict[tuple[int, int], IntervalStatistics] = {}
        self._reached: dict[tuple[int, int], int] = {}
        for line in self._journal.lines():
            self._keep(IntervalStatistics.model_validate(line))

    def close(self) -> None:
        """Close statistics.jsonl; nothing can be appended any more."""
        self._journal.close()

    @property
    def all(self) -> list[IntervalStatistics]:
        """Return the statistics of all intervals of all lineages, in the order in which they were written."""
        return list(self._known.values())

    async def take(self, statistics: list[IntervalStatistics]) -> None:
        """Append the new statistics; they are durable on return, and written even if the caller is cancelled. Raises OSError."""
        await uncancelled(self._take(statistics))

    async def _take(self, statistics: list[IntervalStatistics]) -> None:
        async with self._order:
            fresh = {(one.lineage, one.number): one for one in statistics if (one.lineage, one.number) not in self._known}
            await self._journal.append([one.model_dump() for one in fresh.values()])
            for one in fresh.values():
                self._keep(one)

    def durable_interval(self, lineages: tuple[LineageStart, ...], calendar: DecisionCalendar) -> int:
        """Return the last interval up to which all surviving statistics are on disk; 0 where none are.

        Where the newest lineage has no statistics of its own yet, those of its predecessors count: statistics of intervals that
        ended just before it began may still be with the workers. Workers send the oldest first, so after one of the lineage's own
        nothing older comes.
        """
        until = math.inf
        for start in reversed(lineages):
            first = calendar.complete_at(start.starts_at_step)
            number = self._number_reached(start.lineage, first)
            if number is not None:
                return int(min(number, until))
            until = min(until, first)
        return 0

    def _number_reached(self, lineage: int, first: int) -> int | None:
        """Return the last of a lineage's own intervals, without a gap; None where it has none.

        Args:
            lineage: the lineage's number.
            first: the interval that was complete when the lineage began; it counts as its own where a restore has kept it.
        """
        number = self._reached.get((lineage, first), first)  # called for each heartbeat; intervals are only added
        while (lineage, number + 1) in self._known:
            number += 1
        self._reached[lineage, first] = number
        return number if number > first or (lineage, first) in self._known else None

    def _keep(self, one: IntervalStatistics) -> None:
        self._known[(one.lineage, one.number)] = one


def _lineage_line(start: LineageStart) -> dict[str, object]:
    """Return the start of a lineage as a line of metrics.jsonl, with `distrusts` where the cut-off steps are distrusted."""
    return start.model_dump(include={"lineage", "starts_at_step", *(("distrusts",) if start.distrusts else ())})


def _bits(value: float) -> bytes:
    return b"nan" if math.isnan(value) else struct.pack("<d", value)
