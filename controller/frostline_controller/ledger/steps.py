"""Sums over the records of steps: by freeze point, and separately for steps that a later lineage took back."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from frostline_contract.lineage import Cuts, LineageStart
from frostline_contract.mesh import Mesh
from frostline_contract.statistics import StepRecord

GAP_MAX = 10_000_000
"""Largest gap of steps without a record before a record; no run has such a gap, and each step takes memory."""


@dataclass
class StepSums:
    """Sums over the surviving steps at one freeze point.

    Attributes:
        steps: number of steps.
        replica_steps: number of steps, each times its replicas.
        hits: samples read from the cache.
    """

    steps: int = 0
    replica_steps: int = 0
    hits: int = 0


class Steps:
    """A few numbers of each step, so that a new lineage can take back exactly the steps that it cuts off.

    Attributes:
        by_point: sums by freeze point.
        taken_back: worker-seconds of the steps that were taken back, each step's seconds times its members.
    """

    def __init__(self) -> None:
        self.by_point: dict[int, StepSums] = {}
        self.taken_back = 0.0
        self._cuts = Cuts()
        self._seconds, self._points = array("d"), array("i")
        self._replicas, self._hits, self._lineages = array("i"), array("q"), array("q")

    def add(self, record: StepRecord) -> None:
        """Add a record, which must not be added twice. It may come after the start of the lineage that takes its step back."""
        worker_seconds = max(0.0, record.step_seconds) * Mesh.of(record.degrees).size
        if not self._cuts.survives(record.lineage, record.step):
            self.taken_back += worker_seconds
            return
        missing = record.step + 1 - len(self._seconds)
        if missing > GAP_MAX:
            return
        if missing > 0:
            for column in (self._seconds, self._points, self._replicas, self._hits, self._lineages):
                column.extend([0] * missing)
        step, replicas = record.step, record.degrees.get("dp", 1)
        self._seconds[step], self._points[step] = worker_seconds, record.freeze_point
        self._replicas[step], self._hits[step], self._lineages[step] = replicas, record.cache_hits, record.lineage
        self._count(step, 1)

    def start(self, start: LineageStart) -> None:
        """Begin a lineage, which takes back steps of older lineages. A repeated call has no effect."""
        if any(known.lineage == start.lineage for known in self._cuts.starts):
            return
        self._cuts = Cuts((*self._cuts.starts, start))
        for step in range(len(self._seconds)):
            if self._replicas[step] and self._lineages[step] < start.lineage and start.takes_back(step):
                self.taken_back += self._seconds[step]
                self._count(step, -1)
                self._replicas[step] = 0

    def _count(self, step: int, sign: int) -> None:
        sums = self.by_point.setdefault(self._points[step], StepSums())
        sums.steps += sign
        sums.replica_steps += sign * self._replicas[step]
        sums.hits += sign * self._hits[step]


def micro_batches(sums: Mapping[int, StepSums], a_step: int, per_replica: bool) -> dict[int, int]:
    """Return the micro-batches computed, by freeze point.

    Args:
        sums: of the run's steps, by freeze point.
        a_step: micro-batches of a step; with `per_replica` those of a replica's part of a step.
        per_replica: whether to count each replica's steps.
    """
    return {point: a_step * (one.replica_steps if per_replica else one.steps) for point, one in sums.items()}
