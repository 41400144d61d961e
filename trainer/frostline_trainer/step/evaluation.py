"""Distributed evaluation: tiles of a split, of the micro-batch's shape, are distributed over the replicas.

Each sample's row of figures has one contributor; an all-reduce gives all rows to all members, which compute the metrics in sample
order. So the metrics are the same on any placement.
"""

from typing import Any

import torch

from frostline_trainer.data.split import inputs_of
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.pipeline import MicroBatch


def evaluate(generation: Generation, split: Any) -> tuple[torch.Tensor, dict[str, float]]:
    """Score a split. Returns rows (samples, columns), float64, and the task's metrics."""
    context, size = generation.context, generation.context.micro_batch_size
    generation.complete_weights()
    num_tiles = -(-len(split) // size)
    scored: dict[int, torch.Tensor] = {}
    own = generation.shape.share_of(num_tiles, generation.dp_rank)
    for tile in own:
        generation.moved()
        samples = list(range(tile * size, min((tile + 1) * size, len(split))))
        samples += [-1] * (size - len(samples))
        inputs = context.on_device(inputs_of(split, samples, [0] * size, samples=0 in generation.stages))
        scores = generation.pipeline.evaluate(generation.evaluation, MicroBatch(tile, inputs), context.task.evaluate)
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


def sample_losses(rows: torch.Tensor) -> tuple[float, ...]:
    """Mean loss of each sample, in sample order (0 for a sample without valid items)."""
    return tuple((rows[:, 0] / rows[:, 1].clamp(min=1.0)).tolist())
