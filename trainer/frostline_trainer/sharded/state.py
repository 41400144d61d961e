"""The state of a unit in tiles: which of its numbers belong to which tile."""

from collections.abc import Iterator

from torch import Tensor, nn

from frostline_trainer.sharded.linear import Cut, TiledLinear


def tiles_of(unit: nn.Module, name: str, gradient: Tensor) -> list[Tensor]:
    """The gradient of a unit's parameter as its norm is taken: tile by tile where tiles cut it, so that whoever holds a tile can
    take its share of the norm; else as it is."""
    layer = _layer_of(unit, name)
    if layer is None:
        return [gradient]
    return [layer.cut.tile(gradient, layer.kept.held, place) for place in range(layer.kept.held)]


def cut_gradients(unit: nn.Module) -> Iterator[tuple[Cut, Tensor]]:
    """The gradients of a unit's parameters that tiles cut, with the cut, in the parameters' order."""
    for name, parameter in unit.named_parameters():
        layer = _layer_of(unit, name)
        if layer is not None and parameter.grad is not None:
            yield layer.cut, parameter.grad


def _layer_of(unit: nn.Module, name: str) -> TiledLinear | None:
    """The layer that cuts a parameter; None where it is whole in every tile, as a row layer's bias is."""
    owner, _, leaf = name.rpartition(".")
    layer = unit.get_submodule(owner)
    return layer if isinstance(layer, TiledLinear) and (leaf == "weight" or layer.cut.is_column) else None
