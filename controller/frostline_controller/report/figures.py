"""The figures of one finished run, for tables of several runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frostline_contract.mesh import Mesh
from frostline_controller.ledger.sums import Ledger
from frostline_controller.report.data import read_run


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """The final figures of a run.

    Attributes:
        wall_seconds: of the whole run.
        training_seconds: from the first step's start to the last commit.
        worker_seconds: of all steps, repeated ones included: each step's seconds times the workers in its shape.
        final: the test split's numbers, main metric first.
        digest: of the final weights and optimizer state.
        shapes: degrees by axis, in the run's order.
        cache_hits: samples read from the cache; cache_misses: samples not found there.
        ledger: uses of worker-seconds, where the run has recorded them.
    """

    wall_seconds: float
    training_seconds: float
    worker_seconds: float
    final: dict[str, float]
    digest: str
    freeze_point: int
    num_units: int
    shapes: tuple[dict[str, int], ...]
    cache_hits: int
    cache_misses: int
    micro_batch_size: int
    ledger: Ledger | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON values, ledger included."""
        ledger = self.ledger.as_json() if self.ledger is not None else None
        return {**vars(self), "shapes": list(self.shapes), "ledger": ledger}


def read_figures(folder: Path) -> RunFigures:
    """Return the figures of a finished run directory. Raises ValueError where it holds none."""
    run = read_run(folder)
    every = (*run.lost_records, *run.records)
    if not run.records:
        raise ValueError(f"{folder}: has no record of a step")
    started = min(record.time_seconds - record.step_seconds for record in every)
    shapes = [record.degrees for record in run.records]
    return RunFigures(
        wall_seconds=run.wall_seconds(),
        training_seconds=max(record.time_seconds for record in every) - started,
        worker_seconds=sum(record.step_seconds * Mesh.of(record.degrees).size for record in every),
        final=run.final,
        digest=str(run.result.get("digest", "")),
        freeze_point=run.records[-1].freeze_point,
        num_units=run.num_units,
        shapes=tuple(shape for i, shape in enumerate(shapes) if i == 0 or shape != shapes[i - 1]),
        cache_hits=sum(record.cache_hits for record in run.records),
        cache_misses=sum(record.cache_misses for record in run.records),
        micro_batch_size=int(run.job["training"]["micro_batch_size"]),
        ledger=run.ledger,
    )
