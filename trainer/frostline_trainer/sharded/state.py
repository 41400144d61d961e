"""The parts of a unit's gradients that belong to each tile."""

from collections.abc import Iterator

from torch import Tensor, nn

from frostline_trainer.sharded.linear import Cut, TiledLinear


def tiles_of(unit: nn.Module, name: str, gradient: Tensor) -> list[Tensor]:
    """The parts of a parameter's gradient for which norms are computed separately: its tiles if it is cut, since a member may
    hold only some of them; otherwise the whole."""
    layer = _layer_of(unit, name)
    if layer is None:
        return [gradient]
    return [layer.cut.tile(gradient, layer.kept.held, place) for place in range(layer.kept.held)]


def cut_gradients(unit: nn.Module) -> Iterator[tuple[Cut, Tensor]]:
    """(cut, gradient) of a unit's parameters that are cut into tiles, in the parameters' order."""
    for name, parameter in unit.named_parameters():
        layer = _layer_of(unit, name)
        if layer is not None and parameter.grad is not None:
            yield layer.cut, parameter.grad


def _layer_of(unit: nn.Module, name: str) -> TiledLinear | None:
    """The layer that cuts a parameter; None if the parameter is not cut, like a row layer's bias."""
    owner, _, leaf = name.rpartition(".")
    layer = unit.get_submodule(owner)
    return layer if isinstance(layer, TiledLinear) and (leaf == "weight" or layer.cut.is_column) else None
