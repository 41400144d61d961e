"""Layers outside of tiles, computed for each row tile separately, so that no bit depends on who computes which samples.

Such a layer (a norm, a dropout) is called once for each row tile, on contiguous aligned samples, and dropout draws from a seed of
its own there. A parameter's gradient is the sum over row tiles, by pairs. Where the members of a group divide the samples, it is
summed over the group: for all parameters of a unit at once, when the backward has passed the unit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from frostline_trainer.step.alignment import aligned
from frostline_trainer.tensor.attention import TiledActivation
from frostline_trainer.tensor.dropout import each_seeded
from frostline_trainer.tensor.linear import TiledLinear, TiledRow
from frostline_trainer.tensor.pairs import addend, pairwise
from frostline_trainer.tensor.rows import Rows, row_tiles


class RowWise:
    """A mixin for the class of a layer without submodules.

    Attributes:
        row_tiles: those that it computes.
        site: its name within its unit.
        fanned: while its unit computes with gradients, each parameter as often as there are held row tiles.
    """

    row_tiles: Rows
    site: str
    fanned: dict[str, tuple[Tensor, ...]]

    def forward(self, x: Tensor, *arguments: Any) -> Tensor:
        """The layer's output. x: (samples, ...); a number of samples that row tiles do not divide is computed at once."""
        held = self.row_tiles.held
        if x.shape[0] % held:
            return super().forward(x, *arguments)  # type: ignore[misc]
        samples = [aligned(part.contiguous()) for part in x.chunk(held)]

        def of_tile(place: int) -> Tensor:
            with self._with_parameters(place):
                return super(RowWise, self).forward(samples[place], *arguments)  # type: ignore[misc]

        draws = isinstance(self, _DropoutNd) and self.training and self.p > 0.0
        found = each_seeded("row tile", self.row_tiles.numbers, self.site, x.device, draws, of_tile)
        return found[0] if held == 1 else torch.cat(found)

    @contextmanager
    def _with_parameters(self, place: int) -> Iterator[None]:
        """The parameters that are the row tile's own leaves of the graph."""
        parameters: dict[str, Any] = self._parameters  # type: ignore[attr-defined]
        before = dict(parameters)
        parameters.update({name: copies[place] for name, copies in self.fanned.items()})
        try:
            yield
        finally:
            parameters.update(before)


@cache
def _row_wise(kind: type[nn.Module]) -> type[nn.Module]:
    """The class of layers of a kind that are computed for each row tile."""
    return type(f"RowWise{kind.__name__}", (RowWise, kind), {})


def compute_by_rows(unit: nn.Module, rows: Rows, words: str) -> None:
    """Let the layers of a unit that are not in tiles compute row tiles, in place; names and parameters stay.

    Args:
        unit: in tiles already.
        rows: the row tiles.
        words: names the unit in errors.

    Raises:
        ValueError: the unit has parameters of its own beside its layers.
    """
    for name, module in unit.named_modules():
        if isinstance(module, TiledLinear | TiledActivation):
            continue
        parameters = [leaf for leaf, _ in module.named_parameters(recurse=False)]
        if parameters and any(True for _ in module.children()):
            raise ValueError(
                f"{words}: training.tensor_tiles.rows is {rows.total}, and {name or 'the unit'} has {', '.join(parameters)} "
                "beside its layers, which is not computed by row tiles; set rows to 1, or put it into a layer of its own"
            )
        if parameters or isinstance(module, _DropoutNd):
            module.__class__ = _row_wise(type(module))
            module.row_tiles, module.site, module.fanned = rows, name, {}
    unit.register_forward_pre_hook(_fan_out)
    unit.register_forward_hook(_forget_fan, always_call=True)


def _summed_over_rows(unit: nn.Module) -> list[tuple[Any, str, nn.Parameter]]:
    """(layer, name, parameter) of those parameters whose gradient is a sum over row tiles, and that learn."""
    layers = [module for module in unit.modules() if isinstance(module, RowWise | TiledRow)]
    return [
        (layer, name, parameter)
        for layer in layers
        for name, parameter in layer.named_parameters(recurse=False)
        if parameter.requires_grad and not (isinstance(layer, TiledRow) and layer.cuts(name))
    ]


def _fan_out(unit: nn.Module, _: Any) -> None:
    """Before a unit computes with gradients: give each row tile its own copies of parameters, as leaves of the graph."""
    places = _summed_over_rows(unit) if torch.is_grad_enabled() else []
    if not places:
        return
    rows = row_tiles(unit)
    copies = _FanOut.apply(rows, *(parameter for _, _, parameter in places))
    for number, (layer, name, _) in enumerate(places):
        layer.fanned = layer.fanned | {name: copies[number * rows.held : (number + 1) * rows.held]}


def _forget_fan(unit: nn.Module, *_: Any) -> None:
    """Afterwards: let the graph alone hold the copies."""
    for layer in unit.modules():
        if isinstance(layer, RowWise | TiledRow):
            layer.fanned = {}


class _FanOut(torch.autograd.Function):
    """Parameters, each once for every held row tile; in the backward one sum over row tiles for all of them."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.rows, ctx.types = rows, [parameter.dtype for parameter in parameters]
        return tuple(parameter.view_as(parameter) for parameter in parameters for _ in rows.numbers)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, found = ctx.rows, list[Tensor | None]([None] * len(ctx.types))
        nodes = {
            number: pairwise([addend(one) for one in gradients[number * rows.held : (number + 1) * rows.held]])
            for number in range(len(ctx.types))
            if ctx.needs_input_grad[1 + number]
        }
        if rows.exchange is not None and nodes:
            flat = rows.exchange.sum(torch.cat([node.reshape(-1) for node in nodes.values()]))
            parts = flat.split([node.numel() for node in nodes.values()])
            nodes = {number: part.view(node.shape) for (number, node), part in zip(nodes.items(), parts, strict=True)}
        for number, node in nodes.items():
            found[number] = node.to(ctx.types[number])
        return None, *found
