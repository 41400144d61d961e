"""The paper's partitioner and compression rule (arXiv 2102.03161, Algorithm 1), for comparison.

The rule cuts at half-blocks (attention, MLP), weighs them by parameters in millions and fills stage i while

    size + next < mean + variance / (K - i),    mean: sizes left / (K - i); variance: of the half-blocks left;

then it halves K while the largest stage at K / 2 is no larger than the largest stage was at the start. The published thresholds
(ViT-B/16 from K = 8: 4, 2 and 1 at 5, 9 and 11 frozen layers) follow from the active half-blocks alone. The paper's discount of
frozen half-blocks, FROZEN_COST = 1/6, is a ratio of memories; with it a single stage of ViT-B/16 at 11 frozen layers weighs 21.0
million against the start's largest of 14.2, so that K = 1 could not be reached at 11. `frozen_cost` allows both readings.
"""

import statistics
from collections.abc import Sequence

FROZEN_COST = 1 / 6
"""The paper's discount of a frozen half-block, a ratio of memories."""

ACTIVE_ONLY = 0.0
"""Frozen half-blocks weigh nothing; the published thresholds follow from this value."""

MILLION = 1e6


def weights(embedding: int, half_blocks: Sequence[int], head: int, frozen_layers: int, frozen_cost: float) -> list[float]:
    """Return the weights of embedding, half-blocks and head: millions of parameters, times `frozen_cost` if frozen.

    The embedding freezes with the first layer.

    Args:
        embedding, head: their numbers of parameters.
        half_blocks: number of parameters of each half-block; a layer has two.
        frozen_layers: number of frozen layers.
        frozen_cost: factor of a frozen part's weight: `FROZEN_COST` or `ACTIVE_ONLY`.
    """
    frozen_units = 1 + 2 * frozen_layers if frozen_layers > 0 else 0
    parameters = [embedding, *half_blocks, head]
    return [size / MILLION * (frozen_cost if unit < frozen_units else 1.0) for unit, size in enumerate(parameters)]


def greedy_bounds(sizes: Sequence[float], num_stages: int) -> list[int]:
    """Return the num_stages + 1 bounds of the paper's greedy fill; the last stage takes the rest, and stages may be empty."""
    bounds = [0]
    for stage in range(num_stages - 1):
        left, remaining = sizes[bounds[-1] :], num_stages - stage
        threshold = sum(left) / remaining + (statistics.pvariance(left) / remaining if left else 0.0)
        size, end = 0.0, bounds[-1]
        while end < len(sizes) and size + sizes[end] < threshold:
            size += sizes[end]
            end += 1
        bounds.append(end)
    return [*bounds, len(sizes)]


def largest_stage(sizes: Sequence[float], num_stages: int) -> float:
    """Return the size of the greedy partition's largest stage."""
    bounds = greedy_bounds(sizes, num_stages)
    return max(sum(sizes[low:high]) for low, high in zip(bounds, bounds[1:], strict=False))


def compressed_stages(current: int, sizes: Sequence[float], largest_at_start: float) -> int:
    """Return K after the compression rule: halved while the largest stage at half K stays within the start's largest."""
    stages = current
    while stages > 1 and largest_stage(sizes, stages // 2) <= largest_at_start * (1 + 1e-9):
        stages //= 2
    return stages
