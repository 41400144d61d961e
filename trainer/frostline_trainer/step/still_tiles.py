"""Weights below adapters in a tensor group: a member's module has the tiles of them that it computes, host memory has the whole.

Such weights never learn and are no state, so that nobody sends them. Every worker keeps the whole of each in host memory, from
which the module gets other tiles where the group changes, or all of them where the block is frozen.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from frostline_trainer.families.base import still_names
from frostline_trainer.step.tile_state import without_group
from frostline_trainer.tensor.install import share_tiles
from frostline_trainer.tensor.layer import TiledLayer
from frostline_trainer.tensor.state import layer_of
from frostline_trainer.tensor.tiles import Tiles


def _still_layers(unit: nn.Module) -> dict[str, TiledLayer]:
    """The layer of each weight that tiles cut and that never learns, by the weight's name, in the unit's order."""
    still = still_names(unit)
    found = {name: layer_of(unit, name) for name, _ in unit.named_parameters() if name in still}
    return {name: layer for name, layer in found.items() if layer is not None}


def _wholes(unit: nn.Module) -> dict[str, torch.Tensor]:
    """The whole weights, in host memory, of which the module has some tiles alone, by name; may be changed."""
    return vars(unit).setdefault("still_wholes", {})


def _held(unit: nn.Module) -> dict[str, range]:
    """The tiles that the module has of each such weight, by name, where they are not all; may be changed."""
    return vars(unit).setdefault("still_held", {})


@torch.no_grad()
def hold_still_tiles(unit: nn.Module, tiles: Tiles) -> None:
    """Let a module hold these tiles of the weights that never learn, on its device."""
    layers, wholes, held = _still_layers(unit), _wholes(unit), _held(unit)
    for name, layer in layers.items():
        if tiles.numbers == held.get(name, layer.kept.all.numbers):  # not `kept`, which a bias that learns may have changed
            continue
        held[name] = tiles.numbers
        parameter = unit.get_parameter(name)
        whole = wholes.pop(name, parameter.data)
        own = whole
        if tiles.held < tiles.total:
            wholes[name] = whole = whole.cpu()  # on a GPU a view would keep the whole there
            own = layer.cut.tile(whole, tiles.total // tiles.held, tiles.first // tiles.held)
        parameter.data = own.to(parameter.device)
    for layer in set(layers.values()):
        layer.kept = without_group(tiles)


def hold_all_still_tiles(unit: nn.Module) -> None:
    """Let a module hold all tiles of the weights that never learn."""
    if (kept := _kept(unit)) is not None:
        hold_still_tiles(unit, kept.all)


@torch.no_grad()
def still_weights(unit: nn.Module) -> dict[str, torch.Tensor]:
    """The whole weights that never learn, by name: the tiles that the module has as they are there, the others from host memory.

    By reference where the module has the whole.
    """
    still, wholes = still_names(unit), _wholes(unit)
    found = {name: tensor.detach() for name, tensor in unit.state_dict().items() if name in still}
    for name, layer in _still_layers(unit).items():
        if name in wholes:
            members, place = layer.kept.total // layer.kept.held, layer.kept.first // layer.kept.held
            parts = [layer.cut.tile(wholes[name], members, one) for one in range(members)]
            parts[place] = found[name].cpu()
            found[name] = layer.cut.whole(parts)
    return found


@contextmanager
def still_tiles_of_another(units: Iterable[nn.Module], tiles: Tiles) -> Iterator[None]:
    """Let modules hold and compute, for a while, another member's tiles of weights that never learn; modules that hold all tiles
    stay as they are. Afterwards the caller shares the tiles out again."""
    own = [(unit, kept) for unit in units if (kept := _kept(unit)) is not None and kept.held == tiles.held]
    try:
        for unit, _ in own:
            hold_still_tiles(unit, tiles)
            share_tiles(unit, tiles)
        yield
    finally:
        for unit, kept in own:
            hold_still_tiles(unit, kept)


def _kept(unit: nn.Module) -> Tiles | None:
    """The tiles that a module holds of weights that never learn; None: tiles cut none."""
    return next((layer.kept for layer in _still_layers(unit).values()), None)
