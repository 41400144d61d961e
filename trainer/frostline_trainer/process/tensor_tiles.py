"""Installs tensor tiles in a run's model, after checking its family's tensor table on the model."""

import copy

import torch
from torch import nn

from frostline_trainer.data.split import first_samples
from frostline_trainer.families.registry import family_named
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.unit_kinds import first_of_its_kind
from frostline_trainer.tensor.checking import check_table
from frostline_trainer.tensor.checking_vocabulary import check_embedding, check_logits
from frostline_trainer.tensor.install import check_heads, table_of, tile_blocks, tile_embedding, tile_logits
from frostline_trainer.tensor.table import TensorTable
from frostline_trainer.tensor.tiles import Tiles

SAMPLES = 2
"""Samples of a check, at least; one for each row tile if they are more."""


def install_tiles(context: RunContext) -> None:
    """Let the model compute in the job's tiles; with one tile the model is not changed.

    Raises ValueError, with field, value and remedy, if the model cannot be cut like this, or its family's table is wrong.
    """
    grid = context.job.training.tensor_tiles
    if grid.grid.size == 1:
        return
    family, cut = family_named(context.job.model.family), context.cut
    table = table_of(family, cut.model.config)
    check_heads(table, cut.model.config, grid.inner)
    words = [f"model.family {family.name}, {name}" for name in cut.unit_names]
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        _check(context, table, words)
    tile_blocks(cut, family, context.tiles)
    embedding, logits = context.job.tiled_ends
    if embedding:
        tile_embedding(cut.units[0], table, Tiles(grid.inner), words[0], cut.model)
    if logits:
        context.task.vocabulary = tile_logits(cut.units[-1], table, Tiles(grid.inner), words[-1], cut.model)


def _check(context: RunContext, table: TensorTable, words: list[str]) -> None:
    """Check the table on one block of each kind, and on embedding and head where tiles cut the vocabulary."""
    grid, units = context.job.training.tensor_tiles, context.cut.units
    samples = first_samples(context.data.train, max(SAMPLES, grid.rows))
    inputs = context.on_device(context.data.train.collate(samples, [0] * len(samples)))
    entry = torch.empty(len(samples), *context.hidden_shape, device=context.device)

    def on_device(index: int) -> nn.Module:
        return copy.deepcopy(units[index]).to(context.device)

    for index, first in enumerate(first_of_its_kind(units)):
        if index == first and 0 < index < len(units) - 1:
            check_table(on_device(index), table, context.tiles, inputs, entry, words[index])
    embedding, logits = context.job.tiled_ends
    if embedding:
        check_embedding(on_device(0), table, grid.inner, inputs, entry, words[0])
    if logits:
        check_logits(on_device(len(units) - 1), table, grid.inner, inputs, entry, words[-1])
