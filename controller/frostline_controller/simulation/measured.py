"""Comparison of predicted with measured steps: the cost model on a finished run's placements, beside the run's step times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median
from typing import Any

from frostline_contract.mesh import in_words
from frostline_contract.statistics import CacheProfile, StepRecord
from frostline_controller.planner.adapter import plan_inputs
from frostline_controller.planner.cache_costs import cache_seconds
from frostline_controller.planner.simulated_step import placement_cost
from frostline_controller.simulation.finished import FinishedRun
from frostline_controller.simulation.tables import columns, seconds_words
from frostline_controller.simulation.world import World

HEAD = ("steps", "frozen", "shape", "cache", "measured", "predicted", "predicted / measured")


@dataclass(frozen=True)
class Compared:
    """Consecutive steps of one generation and freeze point.

    Attributes:
        first_step, steps: the first step and the number of steps.
        freeze_point, degrees: in force.
        hit_fraction: share of cache hits; None: the cache was not used.
        measured: seconds of the median step.
        total: seconds of all steps.
        predicted: seconds of a step by the cost model.
        parts: of the predicted step, as in `frostline plan --json`.
    """

    first_step: int
    steps: int
    freeze_point: int
    degrees: dict[str, int]
    hit_fraction: float | None
    measured: float
    total: float
    predicted: float
    parts: dict[str, float]

    @property
    def ratio(self) -> float:
        """Predicted over measured seconds; above 1 the predicted step is too slow."""
        return self.predicted / self.measured


@dataclass(frozen=True)
class Comparison:
    """All stretches of a run. Steps whose plan is not known are left out."""

    rows: tuple[Compared, ...]

    @property
    def measured_seconds(self) -> float:
        """Measured seconds of all compared steps."""
        return sum(row.total for row in self.rows)

    @property
    def predicted_seconds(self) -> float:
        """Predicted seconds of the same steps."""
        return sum(row.steps * row.predicted for row in self.rows)

    @property
    def median_error(self) -> float:
        """The median over the rows of |predicted / measured - 1|."""
        return median(abs(row.ratio - 1) for row in self.rows)

    def as_json(self) -> dict[str, Any]:
        """Return rows and sums as JSON values."""
        return {
            "rows": [{**row.__dict__, "ratio": row.ratio} for row in self.rows],
            "measured_seconds": self.measured_seconds,
            "predicted_seconds": self.predicted_seconds,
            "median_error": self.median_error,
        }

    def as_text(self) -> str:
        """Return the comparison as text: a table with a row for each stretch, and the sums below."""
        rows = [
            (
                f"{row.first_step} to {row.first_step + row.steps - 1}", str(row.freeze_point), in_words(row.degrees),
                "no" if row.hit_fraction is None else f"{row.hit_fraction:.0%} hits", seconds_words(row.measured),
                seconds_words(row.predicted), f"{row.ratio:.2f}",
            )
            for row in self.rows
        ]  # fmt: skip
        share = self.predicted_seconds / self.measured_seconds
        return "\n".join(
            [
                "predicted against measured, for the placements that the run had:",
                *columns(HEAD, rows),
                f"all steps: measured {seconds_words(self.measured_seconds)}, predicted {seconds_words(self.predicted_seconds)} "
                f"({share:.2f}); median error of a shape {self.median_error:.0%}",
            ]
        )


def compare_with_measured(run: FinishedRun, world: World) -> Comparison:
    """Return the comparison for each placement of the run, at each freeze point and with the cache hits of those steps.

    Raises:
        ValueError: no step belongs to a known plan.
    """
    rows = []
    for _, group in groupby(run.data.records, key=lambda record: (record.generation, record.freeze_point)):
        row = _compared(run, world, list(group))
        if row is not None:
            rows.append(row)
    if not rows:
        raise ValueError(f"{run.data.run_dir}: none of its steps belongs to a plan of plans.jsonl; it cannot be compared")
    return Comparison(tuple(rows))


def _compared(run: FinishedRun, world: World, records: Sequence[StepRecord]) -> Compared | None:
    first = records[0]
    plan = run.data.plan_of(first.generation)
    if plan is None:
        return None
    placement = plan.placement
    left = run.steps - first.step + 1
    inputs = plan_inputs(run.job, world.situation(run.job, first.freeze_point, placement, {}, left, len(world.workers)))
    hits, misses = sum(record.cache_hits for record in records), sum(record.cache_misses for record in records)
    hit = None
    if placement.use_cache and hits + misses:
        hit = hits / (hits + misses)
        fetch, fill, _ = cache_seconds(inputs)
        profile = CacheProfile(fetch_seconds_per_sample=fetch, fill_seconds_per_sample=fill, hit_fraction=max(hit, 1e-12))
        inputs = replace(inputs, cache=profile)
    cost = placement_cost(placement, inputs)
    return Compared(
        first.step, len(records), first.freeze_point, first.degrees, hit, median(record.step_seconds for record in records),
        sum(record.step_seconds for record in records), cost.total_seconds, dict(cost.parts),
    )  # fmt: skip
