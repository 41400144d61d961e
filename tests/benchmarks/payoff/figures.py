"""Figures over all lines: time ratios pair by pair, and the bound of the accuracy difference against the margin."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from frostline_controller.comparison.statistics import PairedDifference, paired_difference
from tests.benchmarks.payoff.lines import Line, Lines, by_seed
from tests.benchmarks.payoff.tasks import TASKS

MARGIN = 0.010
"""Fixed before any run: the one-sided 95 % lower bound of the paired difference of accuracy must lie above minus this."""
SEEDS = 10
TEXT_GOALS = {"capped": 1.8, "free": 1.5}
TASK_GOAL = 1.2


@dataclass(frozen=True)
class Ratio:
    """Static seconds over the arm's seconds, one value a pair. Above 1 the arm is faster."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def pairs(lines: Sequence[Line], arm: str) -> list[tuple[Line, Line]]:
    """Return (static, arm) of each seed and pair that were interleaved in one go, on one machine."""
    static = {(line["seed"], line["pair"]): line for line in lines if line["arm"] == "static"}
    ours = {(line["seed"], line["pair"]): line for line in lines if line["arm"] == arm}
    found = [(static[key], ours[key]) for key in sorted(static.keys() & ours.keys())]
    return [(one, other) for one, other in found if (one["machine"], one["go"]) == (other["machine"], other["go"])]


def ratio(lines: Lines, task: str, scale: str, cap: str, arm: str = "elastic", name: str = "seconds") -> Ratio | None:
    """Return the ratio of a task; None if no pair is whole."""
    found = pairs(lines.of(kind="time", task=task, scale=scale, cap=cap), arm)
    return Ratio(tuple(one[name] / other[name] for one, other in found)) if found else None


def difference(lines: Lines, task: str, scale: str, name: str | None = None, arm: str = "elastic") -> PairedDifference | None:
    """Return the arm's metric minus static's, seed by seed; None if no seed has both."""
    name = name or ("accuracy" if TASKS[task].metric else "loss")
    static = by_seed(lines.of(kind="accuracy", task=task, scale=scale, arm="static"), name)
    ours = by_seed(lines.of(kind="accuracy", task=task, scale=scale, arm=arm), name)
    return paired_difference(ours, static) if static.keys() & ours.keys() else None


def apart(lines: Lines, task: str, scale: str, arm: str = "elastic") -> int:
    """Count the seeds whose two accuracy runs computed on different machines: still a pair, of one order of data and one first
    state, but with each machine's own rounding."""
    static = {line["seed"]: processor(line) for line in lines.of(kind="accuracy", task=task, scale=scale, arm="static")}
    ours = {line["seed"]: processor(line) for line in lines.of(kind="accuracy", task=task, scale=scale, arm=arm)}
    return sum(static[seed] != ours[seed] for seed in static.keys() & ours.keys())


def processor(line: Line) -> str:
    """Return what a line's run computed on: its bits do not depend on the number of processors and the memory beside it."""
    return str(line["machine"]).partition(", ")[0]


def verdict(found: PairedDifference | None) -> str:
    """Return in words whether the arm loses no more than the margin; this needs the number of seeds that was fixed beforehand."""
    if found is None:
        return "not run"
    seeds = len(found.differences)
    if seeds < SEEDS or found.lower is None:
        return f"{seeds} of {SEEDS} seeds"
    return "no loss beyond the margin" if found.lower > -MARGIN else "not shown: the bound lies below the margin"


def text_median(lines: Lines, scale: str, cap: str) -> tuple[float, int] | None:
    """Return the median over text tasks of each task's median ratio, and the number of tasks with a ratio."""
    found = [one.median for task in TASKS.values() if task.text and (one := ratio(lines, task.name, scale, cap))]
    return (statistics.median(found), len(found)) if found else None


def agreeing_digests(lines: Lines, task: str, scale: str) -> tuple[int, int]:
    """Count the timed elastic runs that have an accuracy run of the same processor, seed and numerics. Returns (those with its
    digest, all of them)."""
    same = 0
    compared = 0
    alone = {line["seed"]: line for line in lines.of(kind="accuracy", task=task, scale=scale, arm="elastic")}
    for line in lines.of(kind="time", task=task, scale=scale, arm="elastic"):
        other = alone.get(line["seed"])
        if other is None or any(line[name] != other[name] for name in ("micro_batch", "leaves")):
            continue
        if processor(line) == processor(other):
            compared += 1
            same += line["digest"] == other["digest"]
    return same, compared
