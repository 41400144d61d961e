"""The grouping of cells into slices: TeraPipe's dynamic programme (Li et al. 2021) over the seconds of cells.

A micro-batch of n cells passes K stages in slices of consecutive cells. With M micro-batches and t the seconds of a slice in the
slowest stage, at its place in the sequence, a step takes

    M * sum_s t_s + (K - 1) * max_s t_s

For each bound on t_s that may matter, the least sum within the bound is a shortest path over the cells. The seconds come from a
table, so that they may be measured: no curve is fitted, and jumps in the times (a kernel's tile) are kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np


@dataclass(frozen=True)
class Slicing:
    """A cut of a sequence into slices.

    Attributes:
        seconds: of a step, by the formula of this module.
        lengths: cells of each slice, first to last.
        bounds_tried: number of bounds on a slice's seconds that were tried.
    """

    seconds: float
    lengths: tuple[int, ...]
    bounds_tried: int = 0


def slice_table(cells: int, seconds: Callable[[int, int], float]) -> np.ndarray:
    """Return the table [k - 1, j] of `seconds`(k cells of the slice, j cells before it), infinite where j + k exceeds `cells`."""
    table = np.full((cells, cells), np.inf)
    for length in range(1, cells + 1):
        for before in range(cells - length + 1):
            table[length - 1, before] = seconds(length, before)
    return table


def measured_table(cell_seconds: Sequence[float], message_seconds: float = 0.0) -> np.ndarray:
    """Return the table of measured cells, which are computed one after the other in any slice.

    Args:
        cell_seconds: of each cell at its own place in the sequence.
        message_seconds: further seconds of each slice.
    """
    sums = [0.0, *accumulate(cell_seconds)]
    return slice_table(len(cell_seconds), lambda length, before: sums[before + length] - sums[before] + message_seconds)


def best_slices(table: np.ndarray, stages: int, micro_batches: int = 1, bucket_seconds: float = 0.0) -> Slicing:
    """Return the cut of least seconds.

    Args:
        table: at [k - 1, j] the seconds of a slice of k cells after j cells, infinite where there is no such slice.
        stages: K.
        micro_batches: M.
        bucket_seconds: width of the buckets of bounds; only the largest bound of each bucket is tried, so that the result is at
            most stages * bucket_seconds above the best. (With the smallest bound of each bucket the best cut might be refused
            although it lies within the bucket, and there would be no such limit.) 0.0 tries every bound, which is exact.

    Raises:
        ValueError: there is no cell, stage or micro-batch.
    """
    if table.size == 0 or stages < 1 or micro_batches < 1:
        raise ValueError(f"{table.shape[0]} cells, {stages} stages and {micro_batches} micro-batches; give one of each at least")
    ending = _by_end(table)
    bounds = np.unique(table[np.isfinite(table)])
    if bucket_seconds > 0:
        buckets = np.floor(bounds / bucket_seconds)
        bounds = bounds[np.append(np.flatnonzero(np.diff(buckets)), len(bounds) - 1)]
    least = micro_batches * _shortest(ending, np.inf)[0]
    best, tried = Slicing(np.inf, ()), 0
    for bound in bounds:
        if least + (stages - 1) * (bound - bucket_seconds) >= best.seconds:
            break
        tried += 1
        total, lengths = _shortest(ending, bound)
        if lengths:
            longest = max(table[length - 1, before] for length, before in placed(lengths))
            seconds = float(micro_batches * total + (stages - 1) * longest)
            if seconds < best.seconds:
                best = Slicing(seconds, lengths)
    return Slicing(best.seconds, best.lengths, tried)


def placed(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return (cells of the slice, cells before it) for each slice."""
    return list(zip(lengths, accumulate([0, *lengths[:-1]]), strict=True))


def _by_end(table: np.ndarray) -> list[np.ndarray]:
    """Return for each end 1 .. n the seconds of the slices of 1, 2, .. cells that end there."""
    return [np.array([table[length - 1, end - length] for length in range(1, end + 1)]) for end in range(1, table.shape[1] + 1)]


def _shortest(ending: list[np.ndarray], bound: float) -> tuple[float, tuple[int, ...]]:
    """Return (least sum of slices within `bound` each, their lengths); (infinite, ()) where there are no such slices."""
    totals, last = np.full(len(ending) + 1, np.inf), [0] * (len(ending) + 1)
    totals[0] = 0.0
    for end, slices in enumerate(ending, start=1):
        reached = np.where(slices <= bound, totals[end - 1 :: -1][: len(slices)] + slices, np.inf)
        place = int(np.argmin(reached))
        totals[end], last[end] = reached[place], place + 1
    if not np.isfinite(totals[-1]):
        return np.inf, ()
    lengths, end = list[int](), len(ending)
    while end:
        lengths.append(last[end])
        end -= last[end]
    return float(totals[-1]), tuple(reversed(lengths))
