"""Paired differences with one-sided bounds: Student's t, and the sign-flip test that assumes only symmetry."""

import itertools
import math
import random
from dataclasses import dataclass

from frostline_controller.decisions.student_t import t_quantile

CONFIDENCE = 0.95
FLIPS_MAX = 8192
"""The largest number of sign patterns: all patterns up to 13 pairs, this many random ones beyond."""


@dataclass(frozen=True)
class PairedDifference:
    """The mean of arm minus baseline over seeds. Bounds are None below two pairs: one difference has no spread.

    Attributes:
        differences: arm minus baseline, one for each seed that both have.
        mean: the mean of these differences.
        lower, upper: one-sided 95 % bounds of the mean by t.
        sign_flip_lower: the least mean that the sign-flip test does not reject.
    """

    differences: tuple[float, ...]
    mean: float
    lower: float | None
    upper: float | None
    sign_flip_lower: float | None


def paired_difference(arm: dict[int, float], baseline: dict[int, float]) -> PairedDifference:
    """Compare two arms over the seeds that both have. Raises ValueError where there is none."""
    seeds = sorted(arm.keys() & baseline.keys())
    if not seeds:
        raise ValueError(f"no common seed: {sorted(arm)} against {sorted(baseline)}")
    differences = tuple(arm[seed] - baseline[seed] for seed in seeds)
    count = len(differences)
    mean = math.fsum(differences) / count
    if count < 2:
        return PairedDifference(differences, mean, None, None, None)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in differences) / (count - 1))
    half = t_quantile(CONFIDENCE, count - 1) * deviation / math.sqrt(count)
    return PairedDifference(differences, mean, mean - half, mean + half, sign_flip_lower_bound(differences))


def sign_flip_lower_bound(differences: tuple[float, ...]) -> float:
    """Return the least mean difference that a one-sided sign-flip test at 5 % does not reject.

    For a supposed mean, the differences less that mean are equally likely with either sign; the p-value is the share of sign
    patterns whose sum is at least the observed one. The p-value rises with the supposed mean, so the bound is found by bisection.
    With fewer than five pairs no pattern is rare enough, and the bound is minus infinity.
    """
    count = len(differences)
    if 2.0**-count > 1 - CONFIDENCE:
        return -math.inf
    if 2**count <= FLIPS_MAX:
        patterns = list(itertools.product((1.0, -1.0), repeat=count))
    else:
        source = random.Random(0)
        patterns = [(1.0,) * count, *(tuple(source.choice((1.0, -1.0)) for _ in range(count)) for _ in range(FLIPS_MAX - 1))]

    def p_value(supposed: float) -> float:
        centred = [value - supposed for value in differences]
        observed = math.fsum(centred)
        slack = 1e-12 * math.fsum(map(abs, centred))
        sums = (sum(sign * value for sign, value in zip(pattern, centred, strict=True)) for pattern in patterns)
        return sum(total >= observed - slack for total in sums) / len(patterns)

    span = max(differences) - min(differences) or 1e-12
    low, high = min(differences) - span, max(differences) + span
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) <= 1 - CONFIDENCE else (low, middle)
    return (low + high) / 2
