"""Ratios of turns, and what may be said of them: an interval of their median that needs no assumption on the noise."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
ALLOWED = 0.02
"""Differences of less than two per cent are not called one."""


@dataclass(frozen=True)
class Verdict:
    """median: of the ratios new / old. low, high: the interval of that median at CONFIDENCE. word: what it says."""

    median: float
    low: float
    high: float
    count: int

    @property
    def word(self) -> str:
        """slower, faster, or that no difference is seen."""
        if self.low > 1 + ALLOWED:
            return "SLOWER"
        return "faster" if self.high < 1 - ALLOWED else "no difference seen"


def judge(new: Sequence[float], old: Sequence[float]) -> Verdict:
    """Turn by turn: what disturbs a machine for longer than a turn disturbs both sides of a ratio."""
    ratios = sorted(a / b for a, b in zip(new, old, strict=True))
    low, high = interval(len(ratios))
    return Verdict(statistics.median(ratios), ratios[low], ratios[high], len(ratios))


def interval(count: int) -> tuple[int, int]:
    """Places, among `count` sorted values, of the two that hold the true median between them with CONFIDENCE.

    The number of values below the true median is binomial with one half, whatever the values' distribution. Where `count` is
    too small for CONFIDENCE (below six), the smallest and the largest.
    """
    below, place = 0.0, -1
    while below + math.comb(count, place + 1) / 2**count <= (1 - CONFIDENCE) / 2:
        place += 1
        below += math.comb(count, place) / 2**count
    place = max(place, 0)
    return place, count - 1 - place
