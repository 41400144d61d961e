"""Schedules that one run on workers of fixed speed uses in turns, each measured step beside the planner's prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.benchmarks.devices import WORKERS
from tests.benchmarks.fixed_speed import Stretch, walk
from tests.benchmarks.measuring import Row, Spread, milliseconds


@dataclass(frozen=True)
class Way:
    """A way of passing micro-batches through the pipeline."""

    schedule: str
    virtual_stages: int
    slices: int

    @property
    def words(self) -> str:
        virtual = f", {self.virtual_stages} stages a rank" if self.virtual_stages > 1 else ""
        return f"{self.schedule}{virtual}, {'unsliced' if self.slices == 1 else f'{self.slices} slices'}"

    @property
    def fields(self) -> dict[str, Any]:
        """The way's fields in a placement or a reshape."""
        return {"schedule": self.schedule, "virtual_stages": self.virtual_stages, "slices": self.slices}


PREDICTED = "predicted above measured"
COUNTED_BELOW = 64 << 30
"""More bytes than any worker needs: only if the job has a limit do workers count their tensors, in a shape's first step."""


def in_turns(job: dict[str, Any], ways: Sequence[Way], rounds: int, steps: int, about: str = "") -> list[Row]:
    """Return each way's rows: its measured and predicted step, its gain over the first way, and its memory. A way that the
    planner replaced by another has no rows, nor has a way whose stretches were too short.

    Args:
        job: the run's job, on a pipeline of all workers; this function sets its steps and reshapes.
        ways: in the order of use.
        rounds: how often the run goes through all ways.
        steps: number of steps of each way in a round.
        about: prefix of each row's case.
    """
    every = list(ways) * rounds
    first, reshapes = (
        every[0],
        [{"step": place * steps, "pp_degree": WORKERS, "dp_degree": 1, **way.fields} for place, way in enumerate(every) if place],
    )
    job = {
        **job,
        "training": {**job["training"], "steps": len(every) * steps},
        "placement": {**job["placement"], **first.fields, "worker_memory_bytes": COUNTED_BELOW},
        "reshapes": reshapes,
    }
    seen: dict[Way, list[Stretch]] = {}
    for stretch in walk(job).stretches:
        seen.setdefault(_way_of(stretch), []).append(stretch)
    baseline = median(seconds for stretch in seen[ways[0]] for seconds in stretch.seconds)
    return [row for way in ways for row in _rows(way, seen.get(way, []), baseline, f"{ways[0].words} / this", about)]


def median_error(rows: Sequence[Row], case: str, goal_percent: float) -> Row:
    """Return a row with the median error of the predictions among the rows."""
    errors = [abs(row.spread.median) for row in rows if row.figure == PREDICTED]
    return Row(case, "median error", "%", Spread.of(errors), at_most=goal_percent)


def _way_of(stretch: Stretch) -> Way:
    placement = stretch.placement
    return Way(placement.schedule, placement.virtual_stages, max(1, len(placement.slices)))


def _rows(way: Way, stretches: list[Stretch], baseline: float, figure: str, about: str) -> list[Row]:
    seconds = [one for stretch in stretches for one in stretch.seconds]
    if not seconds:
        return []
    predicted = stretches[-1].predicted
    slow = median(stretch.slowness for stretch in stretches)
    sides = {"measured ms": milliseconds(seconds), "predicted ms": 1e3 * predicted, "machine slower x": slow}
    errors = [100 * (predicted / one - 1) for one in seconds]
    error = Spread(min(errors), 100 * (predicted / median(seconds) - 1), max(errors), len(errors))
    gain = Spread.of([baseline / one for one in seconds])
    return [
        Row(about + way.words, PREDICTED, "%", error, sides, note=stretches[-1].in_words()),
        Row(about + way.words, figure, "x", gain),
        *_memory(about + way.words, stretches),
    ]


def _memory(case: str, stretches: list[Stretch]) -> list[Row]:
    """Return a row with the planner's peak relative to the memory of the fullest worker's tensors; none if it was not counted."""
    counted = [one for one in stretches if one.counted_bytes]
    if not counted:
        return []
    planned, held = counted[-1].placement.predicted_peak_bytes, counted[-1].counted_bytes
    above = [100 * (one.placement.predicted_peak_bytes / one.counted_bytes - 1) for one in counted]
    sides = {"planned MiB": planned / (1 << 20), "counted MiB": held / (1 << 20)}
    return [Row(case, "planned above counted memory", "%", Spread.of(above), sides)]
