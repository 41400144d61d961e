"""Installs tensor tiles in a run's model, after checking its family's tensor table on the model."""

import copy

import torch

from frostline_trainer.data.split import first_samples
from frostline_trainer.families.registry import family_named
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.unit_kinds import first_of_its_kind
from frostline_trainer.tensor.checking import check_table
from frostline_trainer.tensor.install import check_heads, table_of, tile_blocks
from frostline_trainer.tensor.tiles import Tiles

SAMPLES = 2


def install_tiles(context: RunContext) -> None:
    """Let the blocks compute in the job's tiles; with one tile the model is not changed.

    Raises ValueError, with field, value and remedy, if the model cannot be cut like this, or its family's table is wrong.
    """
    inner = context.job.training.tensor_tiles.inner
    if inner == 1:
        return
    family, cut = family_named(context.job.model.family), context.cut
    table = table_of(family, cut.model.config)
    check_heads(table, cut.model.config, inner)
    samples = first_samples(context.data.train, SAMPLES)
    inputs = context.on_device(context.data.train.collate(samples, [0] * len(samples)))
    entry = torch.empty(len(samples), *context.hidden_shape, device=context.device)
    with torch.random.fork_rng(devices=[context.device] if context.device.type == "cuda" else []):
        for index, first in enumerate(first_of_its_kind(cut.units)):
            if index == first and 0 < index < len(cut.units) - 1:
                words = f"model.family {family.name}, {cut.unit_names[index]}"
                check_table(copy.deepcopy(cut.units[index]).to(context.device), table, inner, inputs, entry, words)
    tile_blocks(cut, family, Tiles(inner))
