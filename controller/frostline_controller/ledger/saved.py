"""What was saved: estimates from measured unit times. Each formula stands beside its number wherever that is shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

FORMULAS = {
    "freezing": "micro-batches x measured backward seconds of the units that were frozen",
    "cache": "samples read x (measured forward seconds of the frozen units - measured seconds a fetch was waited for)",
    "pods": "(workers of the pods at the start - workers of the pods held) x time",
}
"""What each estimate is, for people."""


@dataclass(frozen=True)
class UnitTimes:
    """Measured seconds of a micro-batch, by unit. prefix_cost: what computing frozen units costs over the profile's forward."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    micro_batch_size: int
    prefix_cost: float = 1.0


def by_freezing(micro_batches: Mapping[int, int], times: UnitTimes) -> float:
    """Worker-seconds of backward passes that frozen units did not compute. micro_batches: by freeze point."""
    prefix = [0.0, *accumulate(times.backward)]
    return sum(count * prefix[min(point, len(times.backward))] for point, count in micro_batches.items())


def by_cache(hits: Mapping[int, int], times: UnitTimes, fetch_seconds: float) -> float:
    """Worker-seconds of forward passes that were read instead; below 0 where reading took longer.

    Args:
        hits: samples that the cache gave, by freeze point.
        times: of the units.
        fetch_seconds: for which a step was kept waiting for one sample.
    """
    prefix = [0.0, *accumulate(times.forward)]
    sample = times.prefix_cost / times.micro_batch_size
    return sum(count * (prefix[min(point, len(times.forward))] * sample - fetch_seconds) for point, count in hits.items())
