"""Measurement of figures: interleaved (A B A B ...), with a ratio for each pair; the smallest, median and largest are kept."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("torch", "transformers", "redis", "hiredis", "grpcio")


@dataclass(frozen=True)
class Spread:
    """Smallest, median and largest of `count` values."""

    low: float
    median: float
    high: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        assert values, "a spread of no values"
        return Spread(min(values), statistics.median(values), max(values), len(values))


@dataclass(frozen=True)
class Row:
    """One figure of a benchmark.

    Attributes:
        case: the model and workers of the measurement ("digits", "bert, 4 workers").
        figure: the name of the figure, in words ("engine / plain loop").
        unit: "x" (a ratio), "%", "ms", "s" or "MB".
        spread: of `figure`.
        sides: medians of the compared sides, each {label: value} with its unit in the label.
        at_most, at_least: the goal, if there is one; the median decides whether it is met.
        note: the parts of the time, or the reason why a goal is missed.
    """

    case: str
    figure: str
    unit: str
    spread: Spread
    sides: dict[str, float] = field(default_factory=dict)
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Report:
    """The result of a benchmark. text: one paragraph on the compared sides and the method."""

    title: str
    text: str
    rows: list[Row]

    def as_json(self) -> dict[str, Any]:
        return rounded(asdict(self))


@dataclass(frozen=True)
class Effort:
    """The extent of a measurement. quick: a smoke test of the benchmark itself; its figures mean nothing."""

    quick: bool

    def pairs(self, full: int) -> int:
        """Return the number of pairs to measure: `full`, or two if quick."""
        return 2 if self.quick else full


def interleave(ways: Mapping[str, Callable[[], object]], pairs: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Return each way's seconds, measured in turns; the first `warm_up` turns are not counted. Every other turn runs in reverse
    order, so that no way always follows the same other way."""
    return interleave_both(ways, pairs, warm_up)[0]


def interleave_both(
    ways: Mapping[str, Callable[[], object]], pairs: int, warm_up: int = 1
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return, as `interleave`, seconds by the clock, and of the calling thread's processor time, which other programs disturb
    less."""
    names = list(ways)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    processor: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(pairs + warm_up):
        for name in names if turn % 2 == 0 else reversed(names):
            started, started_processor = time.perf_counter(), time.thread_time()
            ways[name]()
            ended, ended_processor = time.perf_counter(), time.thread_time()
            if turn >= warm_up:
                seconds[name].append(ended - started)
                processor[name].append(ended_processor - started_processor)
    return seconds, processor


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return ours / theirs, turn by turn."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def milliseconds(values: Sequence[float]) -> float:
    return statistics.median(values) * 1e3


def surroundings() -> dict[str, Any]:
    """Return the machine and the versions behind a figure. Field `load`: runnable processes before the benchmark."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return {
        "device": f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {_memory_gigabytes():.0f} GB",
        "python": platform.python_version(),
        "versions": found,
        "load": round(os.getloadavg()[0], 2),
    }


def rounded(value: Any) -> Any:
    """Round all floats in a nested value to five significant digits: further digits would be noise in the committed file."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, (list, tuple)) else value


def _processor() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gigabytes() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
