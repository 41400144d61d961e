"""The tiles of a unit's parameters and their gradients."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from frostline_trainer.tensor.cut import Cut
from frostline_trainer.tensor.layer import TiledLayer


def cut_layers(unit: nn.Module) -> dict[str, TiledLayer]:
    """The layer of each parameter that tiles cut, by the parameter's name, in the unit's order."""
    found = {name: _layer_of(unit, name) for name, _ in unit.named_parameters()}
    return {name: layer for name, layer in found.items() if layer is not None}


def whole_elements(unit: nn.Module, parameters: Mapping[str, Tensor]) -> int:
    """Elements that these parameters have in a unit with all tiles, also where its module has some tiles alone."""
    layers, found = cut_layers(unit), 0
    for name, parameter in parameters.items():
        layer = layers.get(name)
        shape = parameter.shape if layer is None else shape_with(layer, parameter, range(layer.kept.total))
        found += shape.numel()
    return found


def has_memory(tensor: Tensor) -> bool:
    """Whether a weight has memory for all of its elements; one of a released unit has not."""
    return tensor.untyped_storage().nbytes() >= tensor.numel() * tensor.element_size()


def is_cut(unit: nn.Module, name: str) -> bool:
    """Whether tiles cut a weight of the unit."""
    return _layer_of(unit, name) is not None


def tile_size(unit: nn.Module, name: str, tile: int) -> int:
    """Elements of a tile of a parameter that tiles cut."""
    layer = _layer_of(unit, name)
    assert layer is not None, f"{name} is not cut"
    return shape_with(layer, unit.get_parameter(name), range(tile, tile + 1)).numel()


def shape_with(layer: TiledLayer, parameter: Tensor, tiles: range) -> torch.Size:
    """The shape that a parameter of a layer has with consecutive tiles, which need not be those that the layer keeps."""
    return layer.cut.shape_with(parameter, layer.kept.held, tiles)


def tile_view(unit: nn.Module, name: str, tensor: Tensor, tile: int) -> Tensor:
    """One tile of a contiguous tensor with a parameter's shape, as a view: flat, or (blocks, width) where its elements do not lie
    one behind the other.

    tile: its number in the run; the parameter must have it.
    """
    layer = _layer_of(unit, name)
    assert layer is not None and tile in layer.kept.numbers, f"{name} has no tile {tile}"
    kept = layer.kept
    (view,) = layer.cut.run(tensor.view(-1), 0, tensor.shape, kept.held, tile - kept.first)
    return view.view(-1) if view.is_contiguous() else view


@dataclass(frozen=True)
class CutRun:
    """A run of the flat order of a parameter that tiles cut.

    Args:
        cut: how tiles cut it.
        shape: the parameter's, with all tiles.
        low: the run's first element.
    """

    cut: Cut
    shape: torch.Size
    low: int

    def tile(self, values: Tensor, held: int, place: int) -> list[Tensor]:
        """The elements of one of `held` tiles, as views of the run's values."""
        return self.cut.run(values, self.low, self.shape, held, place)


def run_of(unit: nn.Module, name: str, low: int) -> CutRun | None:
    """A run of a parameter that begins at element `low`; None if tiles do not cut the parameter."""
    layer = _layer_of(unit, name)
    return None if layer is None else CutRun(layer.cut, unit.get_parameter(name).shape, low)


def cut_gradients(unit: nn.Module) -> Iterator[tuple[CutRun, Tensor]]:
    """(run, values) of the whole gradients of a unit's parameters that tiles cut, in the parameters' order."""
    for name, parameter in unit.named_parameters():
        run = run_of(unit, name, 0)
        if run is not None and parameter.grad is not None:
            yield run, parameter.grad.view(-1)


def _layer_of(unit: nn.Module, name: str) -> TiledLayer | None:
    """The layer that cuts a parameter; None if the parameter is not cut, like a row layer's bias."""
    owner, _, leaf = name.rpartition(".")
    layer = unit.get_submodule(owner)
    return layer if isinstance(layer, TiledLayer) and layer.cuts(leaf) else None
