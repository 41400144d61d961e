"""Distributed evaluation: tiles of a split, of the micro-batch's shape, are distributed over the replicas.

Each sample's row of figures has one contributor; an all-reduce gives all rows to all members, which compute the metrics in sample
order. So the metrics are the same on any placement.
"""

from collections.abc import Collection
from typing import Any

import torch

from frostline_trainer.data.split import inputs_of, tile_samples
from frostline_trainer.step.alignment import aligned
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.pipeline import MicroBatch

LATE_SECONDS = 1.0
"""Seconds that a tile may wait for the cache; after one that waited longer the rest of a score is computed, as all might wait."""


def evaluate(generation: Generation, split: Any, step: int) -> tuple[torch.Tensor, dict[str, float]]:
    """Score a split. Returns rows (samples, columns), float64, and the task's metrics.

    A member that has a cache of the split (`Generation.scored_prefix`) reads the frozen prefix's output instead of computing it.

    step: the last committed one, by which cached values are chosen for an audit.
    """
    context, size = generation.context, generation.context.micro_batch_size
    generation.complete_weights()
    num_tiles = -(-len(split) // size)
    scored: dict[int, torch.Tensor] = {}
    own = generation.shape.share_of(num_tiles, generation.dp_rank)
    tiles = _Tiles(generation, split, own, step)
    for tile in own:
        generation.moved()
        scores = generation.pipeline.evaluate(generation.evaluation, tiles.micro_batch(tile), context.task.evaluate)
        if scores is not None:
            scored[tile] = scores
    generation.pipeline.attend(generation.evaluation, -(-num_tiles // generation.shape.dp_degree) - len(own))
    rows = torch.zeros(num_tiles * size, context.task.num_columns, dtype=torch.float64)
    if scored and generation.in_group.speaks:  # one copy from the device, after all tiles have been queued
        for tile, scores in zip(scored, torch.stack(list(scored.values())).cpu(), strict=True):
            rows[tile * size : (tile + 1) * size] = scores
    generation.world.all_reduce_sum(rows)
    rows = rows[: len(split)]
    return rows, context.task.metrics(rows.numpy(), split)


class _Tiles:
    """A member's tiles of a split as micro-batches. own: their numbers. step: as in `evaluate`."""

    def __init__(self, generation: Generation, split: Any, own: Collection[int], step: int) -> None:
        self._generation, self._split, self._own, self._step = generation, split, own, step
        self._prefix = generation.scored_prefix(split)
        self._reads_ahead = generation.context.job.cache.prefetch_steps > 0

    def micro_batch(self, tile: int) -> MicroBatch:
        """A tile, padded to the micro-batch's size, with the frozen prefix's output if there is a cache of the split."""
        context, samples, prefix = self._generation.context, self._samples(tile), self._prefix
        variants, embeds = [0] * len(samples), 0 in self._generation.stages and prefix is None
        made = MicroBatch(tile, context.on_device(inputs_of(self._split, samples, variants, samples=embeds)))
        if prefix is not None:
            if self._reads_ahead and tile + 1 in self._own:
                prefix.prefetch(self._samples(tile + 1), variants)
            before = prefix.waited_seconds
            made.boundary = aligned(prefix.rows(samples, variants))
            prefix.audit(samples, variants, made.boundary, self._step)
            self._prefix = prefix if prefix.waited_seconds - before <= LATE_SECONDS else None
        return made

    def _samples(self, tile: int) -> list[int]:
        return tile_samples(tile, self._generation.context.micro_batch_size, len(self._split))


def sample_losses(rows: torch.Tensor) -> tuple[float, ...]:
    """Mean loss of each sample, in sample order (0 for a sample without valid items)."""
    return tuple((rows[:, 0] / rows[:, 1].clamp(min=1.0)).tolist())
