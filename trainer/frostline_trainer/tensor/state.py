"""The tiles of a unit's parameters and of their gradients."""

from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn

from frostline_contract.tile_grid import TileBox
from frostline_trainer.families.base import learnable
from frostline_trainer.tensor.layer import TiledLayer


def cut_layers(unit: nn.Module) -> dict[str, TiledLayer]:
    """The layer of each parameter that tiles cut, by the parameter's name, in the unit's order. Those that never learn (below
    adapters) are no state and left out."""
    found = {name: layer_of(unit, name) for name in learnable(unit)}
    return {name: layer for name, layer in found.items() if layer is not None}


def whole_elements(unit: nn.Module, parameters: Mapping[str, Tensor]) -> int:
    """Elements that these parameters have in a unit with all tiles, also where its module has some tiles alone."""
    layers, found = cut_layers(unit), 0
    for name, parameter in parameters.items():
        layer = layers.get(name)
        shape = parameter.shape if layer is None else shape_with(layer, parameter, layer.kept.grid.all)
        found += shape.numel()
    return found


def has_memory(tensor: Tensor) -> bool:
    """Whether a weight has memory for all of its elements; one of a released unit has not."""
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()


def release(tensor: Tensor) -> None:
    """Free the memory of a weight; name, shape and type stay."""
    tensor.data = torch.empty((), dtype=tensor.dtype, device=tensor.device).expand(tensor.shape)


def is_cut(unit: nn.Module, name: str) -> bool:
    """Whether tiles cut a weight of the unit."""
    return layer_of(unit, name) is not None


def tile_size(unit: nn.Module, name: str, tile: int) -> int:
    """Elements of a tile of a parameter that tiles cut."""
    layer = layer_of(unit, name)
    assert layer is not None, f"{name} is not cut"
    return shape_with(layer, unit.get_parameter(name), layer.kept.grid.one(tile)).numel()


def shape_with(layer: TiledLayer, parameter: Tensor, tiles: TileBox) -> torch.Size:
    """The shape that a parameter of a layer has with some tiles, which need not be those that the layer keeps."""
    return layer.cut.shape_with(parameter, layer.kept.box, tiles)


def tile_views(unit: nn.Module, name: str, tensor: Tensor, tile: int, low: int, high: int) -> list[Tensor]:
    """Elements [low, high) of a tile, counted in its flat order, of a contiguous tensor with a parameter's shape.

    They are views, in that order: one, flat, where they lie one behind the other; otherwise up to three, of a row's end, of
    several whole rows (the only one with two dimensions) and of a row's beginning. So a part that lies in one is flat, whichever
    tiles the tensor has: moments get its shape, and digests have theirs.

    tile: its number in the run; the parameter must have it.
    """
    layer = layer_of(unit, name)
    assert layer is not None, f"no tile cuts {name}"
    rows = layer.cut.view(tensor, layer.kept.box, tile)
    if rows.is_contiguous():
        return [rows.view(-1)[low:high]]
    #      low   first             last   high
    #       v    v                 v      v
    #   | . head | body   | body   | tail .|      each cell is a row of the tile, apart from the next one in memory
    width = rows.shape[1]
    first = min(-(-low // width) * width, high)  # the head ends with its row, or before that where the range does
    last = max(high // width * width, first)
    return [_block_of(rows, start, end) for start, end in pairwise((low, first, last, high)) if start < end]


def _block_of(rows: Tensor, low: int, high: int) -> Tensor:
    """Elements [low, high) of a matrix: flat where they are in one of its rows, else they are several whole rows."""
    width = rows.shape[1]
    row, start = divmod(low, width)
    return rows[row, start : start + high - low] if start + high - low <= width else rows[row : high // width]


def layer_of(unit: nn.Module, name: str) -> TiledLayer | None:
    """The layer that cuts a parameter; None if the parameter is not cut, like a row layer's bias."""
    owner, _, leaf = name.rpartition(".")
    layer = unit.get_submodule(owner)
    return layer if isinstance(layer, TiledLayer) and layer.cuts(leaf) else None
