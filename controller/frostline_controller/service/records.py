"""Records and statistics of stable steps: durable first, acknowledged then, each once (PROTOCOLS 6)."""

import math
import struct
from collections import OrderedDict
from pathlib import Path

from frostline_contract.statistics import IntervalStatistics, StepRecord
from frostline_controller.state.durable import LineageStart
from frostline_controller.state.journal import Journal

COMPARED_RECORDS = 4096
"""How many of the newest records are kept for the comparison with a step that is done again."""


class ResultsDiffer(Exception):
    """A step redone under the same numerics has another loss: the promise of PROTOCOLS 1 is broken, the run stops."""


class RecordLog:
    """metrics.jsonl: one line a step, unique by (lineage, step), with a line of its own where a lineage starts."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)
        self._complete: dict[int, int] = {}
        self._beyond: dict[int, set[int]] = {}
        self._losses: OrderedDict[tuple[int, str], float] = OrderedDict()
        self.lineage = 0
        self.latest: StepRecord | None = None
        for line in self._journal.lines():
            if "starts_at_step" in line:
                self._start(line["lineage"], line["starts_at_step"])
            else:
                self._note(StepRecord.model_validate(line))

    def close(self) -> None:
        self._journal.close()

    def durable_step(self, lineage: int, starts_at: int) -> int:
        """All records of a lineage up to this step are on disk; where it has none yet, the step that it starts from."""
        return self._complete.get(lineage, starts_at)

    async def take(self, records: list[StepRecord], lineages: tuple[LineageStart, ...], exact: bool) -> list[StepRecord]:
        """Append those that are new and not undone; they are durable when this returns, in step order.

        Of a lineage that a restore ended only steps up to the restored one are taken. Raises ResultsDiffer.
        """
        lines, fresh, opened = [], [], self.lineage
        for record in sorted(records, key=lambda record: (record.lineage, record.step)):
            if self._holds(record) or _undone(record, lineages):
                continue
            if exact:
                self._compare(record)
            lines += [start.model_dump(exclude={"kind"}) for start in lineages if opened < start.lineage <= record.lineage]
            opened = max(opened, record.lineage)
            lines.append(record.model_dump())
            self._beyond.setdefault(record.lineage, set()).add(record.step)
            fresh.append(record)
        try:
            await self._journal.append(lines)
        except OSError:
            for record in fresh:
                self._beyond[record.lineage].discard(record.step)
            raise
        for start in lineages:
            if start.lineage <= opened:
                self._start(start.lineage, start.starts_at_step)
        for record in fresh:
            self._note(record)
        return fresh

    def _start(self, lineage: int, step: int) -> None:
        self.lineage = max(self.lineage, lineage)
        self._complete.setdefault(lineage, step)

    def _holds(self, record: StepRecord) -> bool:
        return record.step <= self._complete.get(record.lineage, 0) or record.step in self._beyond.get(record.lineage, ())

    def _note(self, record: StepRecord) -> None:
        beyond = self._beyond.setdefault(record.lineage, set())
        beyond.add(record.step)
        step = self._complete.setdefault(record.lineage, 0)
        while step + 1 in beyond:
            step += 1
            beyond.discard(step)
        self._complete[record.lineage] = step
        self.lineage = max(self.lineage, record.lineage)
        if self.latest is None or (record.lineage, record.step) >= (self.latest.lineage, self.latest.step):
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
    """statistics.jsonl: one line an interval, unique by (lineage, number); all of it is kept, since policies fold over it."""

    def __init__(self, path: Path) -> None:
        self._journal = Journal(path)
        self._known: dict[tuple[int, int], IntervalStatistics] = {}
        for line in self._journal.lines():
            self._keep(IntervalStatistics.model_validate(line))

    def close(self) -> None:
        self._journal.close()

    @property
    def all(self) -> list[IntervalStatistics]:
        return list(self._known.values())

    async def take(self, statistics: list[IntervalStatistics]) -> None:
        """Append those that are new; they are durable when this returns."""
        fresh = {(one.lineage, one.number): one for one in statistics if (one.lineage, one.number) not in self._known}
        await self._journal.append([one.model_dump() for one in fresh.values()])
        for one in fresh.values():
            self._keep(one)

    def durable_interval(self, lineage: int, first: int) -> int:
        """Statistics of a lineage up to this interval are on disk; `first` is the interval before its first own one."""
        number = first
        while (lineage, number + 1) in self._known:
            number += 1
        return number

    def _keep(self, one: IntervalStatistics) -> None:
        self._known[(one.lineage, one.number)] = one


def _undone(record: StepRecord, lineages: tuple[LineageStart, ...]) -> bool:
    """A late record of a world that a restore has replaced. What a rollback undid did happen and is taken."""
    return any(
        start.kind == "restore" and start.lineage > record.lineage and record.step > start.starts_at_step for start in lineages
    )


def _bits(value: float) -> bytes:
    return b"nan" if math.isnan(value) else struct.pack("<d", value)
