"""The plasticity probe: how far each unit's outputs on the same samples have moved since the last interval, for freeze policies.

The samples are the first of the guard split, which are not trained on. Each unit's outputs are averaged over a sample's tokens,
and their centred Gram matrix is taken. Its cosine with the last interval's matrix is the centred kernel alignment (CKA), which is
independent of scale and rotation; 1 - CKA is the change. So the reference is a few numbers a unit, not a copy of the model, and
is kept in the run state, which a rollback or a restore brings back.

Replica 0 computes the probe in tiles of the micro-batch's shape, each of its members for its own units; an all-reduce gives all
members the same bits, on any placement.
"""

import math
from collections.abc import Sequence

import torch

from frostline_trainer.data.split import inputs_of, tile_samples
from frostline_trainer.step.chunks import Inputs
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.pipeline import MicroBatch

Likeness = list[float]
"""A unit's centred Gram matrix of n samples: its upper half, n (n + 1) / 2 numbers whose squares add up to 1 (or 0)."""


def read_likenesses(generation: Generation) -> list[Likeness]:
    """The likeness of each unit but the head. Collective; empty with fewer than two samples."""
    context = generation.context
    count = min(context.job.freeze.probes, len(context.data.guard))
    if count < 2:
        return []
    rows: dict[int, list[torch.Tensor]] = {}
    generation.complete_weights()
    if generation.dp_rank == 0:
        _run_probe(generation, count, rows)
    else:
        generation.pipeline.attend(generation.evaluation, -(-count // context.micro_batch_size))
    if not generation.in_group.speaks:
        rows.clear()
    similarities = torch.zeros(context.num_units - 1, count * (count + 1) // 2, dtype=torch.float64)
    for unit, found in rows.items():
        similarities[unit] = likeness(torch.cat(found)[:count])
    generation.world.all_reduce_sum(similarities)
    return similarities.tolist()


def output_changes(reference: Sequence[Likeness], now: Sequence[Likeness]) -> tuple[float, ...]:
    """1 - CKA of each unit, 0.0 for the head; empty without a reference of equally many samples."""
    if not now or [len(one) for one in reference] != [len(one) for one in now]:
        return ()
    return (*(change(before, after) for before, after in zip(reference, now, strict=True)), 0.0)


def change(before: Likeness, after: Likeness) -> float:
    """1 - CKA, 0 to 1: exactly 0 for equal numbers. The sum is exact, so it depends on no library's order of additions."""
    if before == after:
        return 0.0
    return min(1.0, max(0.0, 1.0 - math.fsum(map(float.__mul__, before, after))))


def likeness(rows: torch.Tensor) -> torch.Tensor:
    """The upper half of the rows' centred Gram matrix, off-diagonal entries times root 2, scaled to norm 1. rows: (n, width)."""
    centred = rows - rows.mean(dim=0)
    gram = centred @ centred.T
    places = torch.triu_indices(len(rows), len(rows))
    upper = gram[places[0], places[1]]
    upper[places[0] != places[1]] *= math.sqrt(2.0)
    length = upper.norm()
    return upper / length if length > 0 else upper


def _run_probe(generation: Generation, count: int, rows: dict[int, list[torch.Tensor]]) -> None:
    """Run the probe's tiles forward, and append each tile's mean outputs to `rows`, by own unit, in host memory."""
    context, size = generation.context, generation.context.micro_batch_size

    def watch(unit: int, output: torch.Tensor, inputs: Inputs) -> None:
        rows.setdefault(unit, []).append(mean_output(output, inputs).cpu())

    for stage in generation.stages.values():
        stage.watch = watch
    try:
        for tile in range(-(-count // size)):
            generation.moved()
            samples = tile_samples(tile, size, count)
            inputs = context.on_device(inputs_of(context.data.guard, samples, [0] * size, samples=0 in generation.stages))
            generation.pipeline.evaluate(generation.evaluation, MicroBatch(tile, inputs), context.task.evaluate)
    finally:
        for stage in generation.stages.values():
            stage.watch = None


def mean_output(output: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """Each sample's output, averaged over its tokens (padding left out), float64: (samples, width)."""
    mask = inputs.get("attention_mask")
    if mask is None or mask.shape != output.shape[:2]:
        return output.mean(dim=1, dtype=torch.float64)
    real = mask.to(output.dtype).unsqueeze(-1)
    return (output * real).sum(dim=1, dtype=torch.float64) / mask.sum(dim=1, keepdim=True).clamp(min=1).double()
