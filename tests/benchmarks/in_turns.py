"""Schedules that one run on workers of fixed speed uses in turns, each measured step beside the planner's prediction."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tests.benchmarks.devices import WORKERS
from tests.benchmarks.fixed_speed import Stretch, walk
from tests.benchmarks.measuring import Row, Spread, milliseconds
from tests.benchmarks.vote_cost import idle_percent, vote_percent


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


PREDICTED, PLANNED_MEMORY = "predicted above measured", "planned above counted memory"
PROMISED = "promised x"
COUNTED_BELOW = 64 << 30
"""More bytes than any worker needs: only if the job has a limit do workers count their tensors, in a shape's first step."""


def in_turns(job: dict[str, Any], ways: Sequence[Way], rounds: int, steps: int, about: str = "") -> list[Row]:
    """Return each way's rows: its measured and predicted step, its gain over the first way, what the vote costs of it, and its
    memory. A way that the planner replaced by another has no rows, nor has a way whose stretches were too short.

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
    compared = seen[ways[0]]
    baseline, promised = median(seconds for one in compared for seconds in one.seconds), compared[-1].predicted
    return [row for way in ways for row in _rows(way, seen.get(way, []), baseline, promised, ways[0].words, about)]


def judged(rows: Sequence[Row], about: str, error_percent: float, gain: float | None = None) -> list[Row]:
    """Return the rows that judge the others: the median and the largest error of the predicted steps; the best gain, which has a
    goal where the planner promises as much; the largest error of the planned memory, which has none.

    Args:
        rows: of `in_turns`.
        about: prefix of each row's case.
        error_percent: the goal of both errors of steps, in percent.
        gain: the goal of the best gain over the first way; None: none.
    """
    errors = [abs(row.spread.median) for row in rows if row.figure == PREDICTED]
    memory = [abs(row.spread.median) for row in rows if row.figure == PLANNED_MEMORY]
    best = max((row for row in rows if PROMISED in row.sides), key=lambda row: row.spread.median)
    promised = max(row.sides[PROMISED] for row in rows if PROMISED in row.sides)
    goal = gain if gain is not None and promised >= gain else None
    return [
        Row(f"{about}all schedules", "median error", "%", Spread.of(errors), at_most=error_percent),
        Row(f"{about}all schedules", "largest error", "%", Spread.of([max(errors)]), at_most=error_percent),
        Row(f"{best.case}, the best", best.figure, "x", best.spread, {PROMISED: promised}, at_least=goal),
        *([Row(f"{about}all schedules", "largest error of planned memory", "%", Spread.of([max(memory)]))] if memory else []),
    ]


def _way_of(stretch: Stretch) -> Way:
    placement = stretch.placement
    return Way(placement.schedule, placement.virtual_stages, max(1, len(placement.slices)))


def _rows(way: Way, stretches: list[Stretch], baseline: float, promised: float, first: str, about: str) -> list[Row]:
    """Return a way's rows. baseline, promised: measured and predicted seconds of the first way, whose name is `first`."""
    seconds = [one for stretch in stretches for one in stretch.seconds]
    if not seconds:
        return []
    predicted, case = stretches[-1].predicted, about + way.words
    slow = median(stretch.slowness for stretch in stretches)
    sides = {"measured ms": milliseconds(seconds), "predicted ms": 1e3 * predicted, "machine slower x": slow}
    errors = [100 * (predicted / one - 1) for one in seconds]
    error = Spread(min(errors), 100 * (predicted / median(seconds) - 1), max(errors), len(errors))
    gain = Spread.of([baseline / one for one in seconds])
    return [
        Row(case, PREDICTED, "%", error, sides, note=stretches[-1].in_words()),
        Row(case, f"{first} / this", "x", gain, {PROMISED: promised / predicted}),
        *_vote(case, stretches),
        *_memory(case, stretches),
    ]


def _vote(case: str, stretches: list[Stretch]) -> list[Row]:
    """Return a row with what the vote costs of a step; none if no step was traced."""
    traced = [step for stretch in stretches for step in stretch.traced]
    if not traced:
        return []
    idle = median(idle_percent(traced))
    return [Row(case, "of a step, for the wait at the vote", "%", Spread.of(vote_percent(traced)), {"ranks idle %": idle})]


def _memory(case: str, stretches: list[Stretch]) -> list[Row]:
    """Return a row with the planner's peak relative to the memory of the fullest worker's tensors; none if it was not counted."""
    counted = [one for one in stretches if one.counted_bytes]
    if not counted:
        return []
    planned, held = counted[-1].placement.predicted_peak_bytes, counted[-1].counted_bytes
    above = [100 * (one.placement.predicted_peak_bytes / one.counted_bytes - 1) for one in counted]
    sides = {"planned MiB": planned / (1 << 20), "counted MiB": held / (1 << 20)}
    return [Row(case, PLANNED_MEMORY, "%", Spread.of(above), sides)]
