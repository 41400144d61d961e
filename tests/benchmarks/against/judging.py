"""Ratios of turns, and the verdict on them: an interval of their median that needs no assumption on the noise."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
ALLOWED = 0.02
"""Differences of less than two per cent do not count as a difference."""


@dataclass(frozen=True)
class Verdict:
    """The result of a comparison. median: of the ratios new / old. low, high: the interval of that median at CONFIDENCE."""

    median: float
    low: float
    high: float
    count: int

    @property
    def word(self) -> str:
        """The verdict in words: slower, faster, or no difference seen."""
        if self.low > 1 + ALLOWED:
            return "SLOWER"
        return "faster" if self.high < 1 - ALLOWED else "no difference seen"


def judge(new: Sequence[float], old: Sequence[float]) -> Verdict:
    """Judge the ratios turn by turn: a disturbance longer than a turn affects both sides of a ratio."""
    ratios = sorted(a / b for a, b in zip(new, old, strict=True))
    low, high = interval(len(ratios))
    return Verdict(statistics.median(ratios), ratios[low], ratios[high], len(ratios))


def interval(count: int) -> tuple[int, int]:
    """Return the indices, among `count` sorted values, of two values that enclose the true median with CONFIDENCE.

    The number of values below the true median is binomial with one half, whatever the values' distribution. If `count` is too
    small for CONFIDENCE (below six), the indices are those of the smallest and the largest value.
    """
    below, place = 0.0, -1
    while below + math.comb(count, place + 1) / 2**count <= (1 - CONFIDENCE) / 2:
        place += 1
        below += math.comb(count, place) / 2**count
    place = max(place, 0)
    return place, count - 1 - place
