"""A step of two workers that share tiles, beside the same workers as a pipeline and as replicas, each at a fixed speed."""

from statistics import median
from typing import Any

from frostline_contract.mesh import in_words
from tests.benchmarks.devices import SHARE
from tests.benchmarks.fixed_speed import AT_ONE_SPEED, Stretch, walk
from tests.benchmarks.fixed_speed_jobs import fixed_speed_job
from tests.benchmarks.measuring import Effort, Report, Row, Spread, milliseconds

WORKERS, TILES = 2, 2
STEPS, ROUNDS = 8, 2
SHAPES = ({"pp_degree": 1, "dp_degree": 2}, {"pp_degree": 2, "dp_degree": 1}, {"pp_degree": 1, "dp_degree": 1, "tp_degree": 2})
"""Replicas first: the other shapes are compared with them."""


def tensor_groups(effort: Effort) -> Report:
    """Measure all shapes in turns, in one run; with nothing frozen, and with the embedding and half the blocks frozen."""
    return Report(
        "A group that shares tiles beside pipeline and replicas",
        f"Two workers, each with {SHARE:g} of one processor by a control group's quota, train a BERT of 192 x 6 whose inner "
        f"widths are computed in {TILES} tiles. One run reshapes through two replicas, two stages and a group of two, {ROUNDS} "
        "rounds, to the same bits. A group sums four times a block and micro-batch, over gloo on one machine: on such links it "
        "is not for speed, and the planner, whose figure stands beside each step, is to say so. "
        f"{AT_ONE_SPEED} There is no goal.",
        [row for frozen in (0, 4) for row in _rows(effort, frozen)],
    )


def _rows(effort: Effort, frozen: int) -> list[Row]:
    steps, rounds = (8, 1) if effort.quick else (STEPS, ROUNDS)
    seen: dict[str, list[Stretch]] = {}
    for stretch in walk(job(steps, rounds, frozen)).stretches:
        seen.setdefault(in_words(stretch.placement.degrees), []).append(stretch)
    first = next(iter(seen.values()))
    baseline = median(seconds for stretch in first for seconds in stretch.seconds)
    about = f"bert, {'half frozen' if frozen else 'unfrozen'}: "
    return [row for shape, stretches in seen.items() for row in _of_shape(about + shape, stretches, baseline)]


def _of_shape(case: str, stretches: list[Stretch], baseline: float) -> list[Row]:
    seconds, predicted = [one for stretch in stretches for one in stretch.seconds], stretches[-1].predicted
    sides = {"measured ms": milliseconds(seconds), "predicted ms": 1e3 * predicted}
    errors = [100 * (predicted / one - 1) for one in seconds]
    against = Spread.of([one / baseline for one in seconds])
    return [
        Row(case, "this / two replicas", "x", against, sides, note=stretches[-1].in_words()),
        Row(case, "predicted above measured", "%", Spread.of(errors)),
    ]


def job(steps: int, rounds: int, frozen: int) -> dict[str, Any]:
    """Return a job that passes through all shapes `rounds` times, `steps` steps each. frozen: units frozen from step 1."""
    every = SHAPES * rounds
    first = {"workers": WORKERS, **every[0]}
    reshapes = [{"step": place * steps, **shape} for place, shape in enumerate(every) if place]
    found = fixed_speed_job("bert", steps * len(every), (1, WORKERS), frozen, placement=first, reshapes=reshapes)
    found["training"] |= {"tensor_tiles": {"inner": TILES}}
    return found
