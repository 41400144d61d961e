"""Estimates of the savings from measured unit times. Each formula is shown beside its number."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

FORMULAS = {
    "freezing": "micro-batches x measured backward seconds of the units that were frozen",
    "cache": "samples read x (measured forward seconds of the frozen units - measured seconds a fetch was waited for)",
    "pods": "(workers of the pods at the start - workers of the pods held) x time",
}
"""The formula of each estimate, in words."""


@dataclass(frozen=True)
class UnitTimes:
    """Measured seconds of a micro-batch.

    Attributes:
        forward, backward: seconds by unit.
        micro_batch_size: samples in a micro-batch.
        prefix_cost: time of computing frozen units, as a multiple of their measured forward.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    micro_batch_size: int
    prefix_cost: float = 1.0


def by_freezing(micro_batches: Mapping[int, int], times: UnitTimes) -> float:
    """Return the worker-seconds of backward passes that frozen units did not compute.

    Args:
        micro_batches: number computed, by freeze point.
        times: of the units.
    """
    prefix = [0.0, *accumulate(times.backward)]
    return sum(count * prefix[min(point, len(times.backward))] for point, count in micro_batches.items())


def by_cache(hits: Mapping[int, int], times: UnitTimes, fetch_seconds: float) -> float:
    """Return the worker-seconds of forward passes saved by reading from the cache; below 0 where reading took longer.

    Args:
        hits: samples read from the cache, by freeze point.
        times: of the units.
        fetch_seconds: cost of one cached sample to a step.
    """
    prefix = [0.0, *accumulate(times.forward)]
    sample = times.prefix_cost / times.micro_batch_size
    return sum(count * (prefix[min(point, len(times.forward))] * sample - fetch_seconds) for point, count in hits.items())
