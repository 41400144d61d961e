"""The functions that warm workers run in tests of groups that share the tiles of blocks.

Two blocks form a stage, which the trainer's own code trains for some steps.
"""

import hashlib
from dataclasses import replace
from typing import Any

import torch

from frostline_contract.plan import Plan
from frostline_trainer.data.split import first_samples
from frostline_trainer.families.registry import family_named
from frostline_trainer.generations.groups import Groups
from frostline_trainer.step.building import stage_settings
from frostline_trainer.step.optimizer import Moments, UnitOptimizer
from frostline_trainer.step.parts import flat
from frostline_trainer.step.stage import Stage
from frostline_trainer.tensor.group import hidden_in, tiles_in
from frostline_trainer.tensor.install import table_of, tile_unit, tiled_layers
from frostline_trainer.tensor.state import is_cut, tile_size, tile_views
from tests.exact_cases import Case, build_case
from tests.forming import form_groups
from tests.group_member import FORMING

STEPS, BLOCKS, RATE = 3, range(1, 3), 1e-2


def train_blocks(worker_id: str, plan: dict[str, Any], case: Case) -> dict[str, str]:
    """Return digests of all results of the steps: outputs, gradients of the entry, weights and moments, the last two tile by
    tile.

    A cut tensor is named with the tile's number in the run, so members have different names, and equal names for equal tensors.
    """
    torch.set_num_threads(1)
    groups = form_groups(Plan.model_validate(plan), worker_id, "gloo", FORMING)
    found = _train(case, groups)
    groups.close()
    return found


def _train(case: Case, groups: Groups) -> dict[str, str]:
    context = build_case(replace(case, inner_tiles=1, hidden_tiles=1))
    table = table_of(family_named(context.job.model.family), context.cut.model.config)
    tiles = tiles_in(groups.columns, case.inner_tiles, hidden=hidden_in(groups.levels, case.hidden_tiles))
    units = [context.cut.units[index] for index in BLOCKS]
    for unit in units:
        tile_unit(unit, table, tiles)
    samples = first_samples(context.data.train, context.micro_batch_size)
    inputs = context.on_device(context.data.train.collate(samples, [0] * len(samples)))
    stage, moments, found = Stage(units, BLOCKS.start, 0, stage_settings(context)), Moments(), {}
    for step in range(1, STEPS + 1):
        drawn = torch.Generator().manual_seed(step)
        entry, direction = (torch.randn(context.hidden_like().shape, generator=drawn).to(context.dtype) for _ in range(2))
        entry.requires_grad_()
        output = stage.run_trainable(entry, inputs, step, 0)
        output.backward(direction)
        found |= {f"{step} output": _digest(output), f"{step} entry": _digest(entry.grad)}
        for index, unit in zip(BLOCKS, units, strict=True):
            for name, parameter in unit.named_parameters():
                found |= _by_tile(f"{step} {index} gradient", unit, name, parameter.grad)
        UnitOptimizer(context.job.training.optimizer, list(zip(BLOCKS, units, strict=True)), moments).step(RATE)
        for unit in units:
            unit.zero_grad(set_to_none=True)
    for index, unit in zip(BLOCKS, units, strict=True):
        for name, parameter in unit.named_parameters():
            found |= _by_tile(f"{index} weight", unit, name, parameter)
            for slot, moment in moments[index, name].items():
                if moment.shape == parameter.shape:
                    found |= _by_tile(f"{index} {slot}", unit, name, moment)
    return found


def _by_tile(what: str, unit: torch.nn.Module, name: str, tensor: torch.Tensor) -> dict[str, str]:
    if not is_cut(unit, name):
        return {f"{what} {name} common": _digest(tensor)}
    held = tiled_layers(unit)[name.rpartition(".")[0]].kept.box.numbers
    tiles = {tile: tile_views(unit, name, tensor.detach(), tile, 0, tile_size(unit, name, tile)) for tile in held}
    return {f"{what} {name} {tile}": _digest(flat(views)) for tile, views in tiles.items()}


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
