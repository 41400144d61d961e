"""Linear layers computed tile by tile: column layers, whose outputs are cut, and row layers, whose inputs are.

A tile's product is a separate call of fixed shape, on contiguous aligned operands, because libraries choose kernels by shape. A
bias is added after the sum and never fused with a product, because a fused bias is rounded at another point. A column layer's
output needs no sum; a row layer's output is the sum of its tiles' partial products. In the backward, the gradient of the input of
column layers is summed over tiles. Weights keep their names and shapes; tiles of them are cut when they are used.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from frostline_trainer.step.alignment import aligned, is_aligned
from frostline_trainer.tensor.cut import Cut
from frostline_trainer.tensor.layer import TiledLayer
from frostline_trainer.tensor.tiles import Tiles, addend, cut, joined


class _Gradients:
    """The gradient of a weight, tile by tile: computed in place if tiles are contiguous in the weight, else put together."""

    def __init__(self, one: Cut, weight: Tensor, held: int) -> None:
        self._cut, self._tiles = one, []
        self._whole = torch.empty_like(weight) if one.in_runs and held > 1 else None
        self._places = [] if self._whole is None else one.places(self._whole, held)
        if not all(is_aligned(place) for place in self._places):
            self._whole, self._places = None, []

    def add(self, rows: Tensor, gradient: Tensor) -> None:
        """Compute the next tile's gradient. rows: the layer's input. gradient: of the layer's output."""
        place = self._places[len(self._tiles)] if self._places else None
        self._tiles.append(self._cut.weight_gradient(rows, gradient, place))

    def whole(self) -> Tensor:
        return self._cut.whole(self._tiles) if self._whole is None else self._whole


class _Columns(torch.autograd.Function):
    """The autograd function of column layers with the same input. The input's gradient is one tree sum over tiles; a tile's
    addend is the sum of its shares from all the layers, in their order."""

    @staticmethod
    def forward(ctx: Any, tiles: Tiles, cuts: tuple[Cut, ...], x: Tensor, *parameters: Tensor | None) -> tuple[Tensor, ...]:
        rows, weights, biases = _rows(x), parameters[: len(cuts)], parameters[len(cuts) :]
        ctx.save_for_backward(rows, *weights)
        ctx.tiles, ctx.cuts, ctx.shape = tiles, cuts, x.shape
        outputs = []
        for one, weight, bias in zip(cuts, weights, biases, strict=True):
            products = []
            for place in range(tiles.held):
                product = one.product(rows, one.tile(weight, tiles.held, place))
                products.append(product if bias is None else product.add_(one.tile(bias, tiles.held, place)))
            outputs.append(joined(products, 1, one.parts).view(*x.shape[:-1], -1))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        rows, *weights = ctx.saved_tensors
        tiles, cuts, need = ctx.tiles, ctx.cuts, ctx.needs_input_grad
        need_weights, need_biases = need[3 : 3 + len(cuts)], need[3 + len(cuts) :]
        terms: list[Tensor] = []
        of_weights = [_Gradients(one, weight, tiles.held) for one, weight in zip(cuts, weights, strict=True)]
        of_biases: list[list[Tensor]] = [[] for _ in cuts]
        flat = [_rows(gradient) for gradient in gradients]
        for place in range(tiles.held):
            term = None
            for number, one in enumerate(cuts):
                gradient = one.output_tile(flat[number], tiles.held, place)
                if need[2]:
                    share = addend(one.entry_gradient(gradient, one.tile(weights[number], tiles.held, place)))
                    term = share if term is None else term + share
                if need_weights[number]:
                    of_weights[number].add(rows, gradient)
                if need_biases[number]:
                    of_biases[number].append(gradient.sum(0))
            if term is not None:
                terms.append(term)
        entry = _in_own_rows(tiles, terms, rows).view(ctx.shape) if terms else None
        biases = [one.whole(gradients) if gradients else None for one, gradients in zip(cuts, of_biases, strict=True)]
        found = [one.whole() if wanted else None for one, wanted in zip(of_weights, need_weights, strict=True)]
        return None, None, entry, *found, *biases


def _in_own_rows(tiles: Tiles, terms: Sequence[Tensor], like: Tensor) -> Tensor:
    """The sum over tiles in the shape of `like`; where members divide the samples, zero but for the own ones (`gathered`)."""
    total = tiles.sum_of_own_rows(terms).to(like.dtype)
    if not tiles.rows.are_divided:
        return total
    whole = torch.zeros_like(like)
    tiles.rows.own(whole).copy_(total)
    return whole


class _Row(torch.autograd.Function):
    """The autograd function of a row layer. Where members divide the samples, its input has all and its output the own ones.

    The bias is given once for each held row tile; its gradient is of that row tile.
    """

    @staticmethod
    def forward(ctx: Any, tiles: Tiles, one: Cut, x: Tensor, weight: Tensor, *biases: Tensor) -> Tensor:
        rows = _rows(x)
        entries = [cut(rows, 1, 1, tiles.held, place) for place in range(tiles.held)]
        ctx.save_for_backward(weight, *entries)
        ctx.tiles, ctx.cut, ctx.shape = tiles, one, x.shape
        products = [addend(one.product(entry, one.tile(weight, tiles.held, place))) for place, entry in enumerate(entries)]
        total = tiles.sum_of_own_rows(products).to(x.dtype)
        return (total + biases[0] if biases else total).view(-1, *x.shape[1:-1], total.shape[-1])

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Any, ...]:
        weight, *entries = ctx.saved_tensors
        tiles, one, need = ctx.tiles, ctx.cut, ctx.needs_input_grad
        own = gradient = _rows(output_gradient)
        if tiles.rows.exchange is not None:
            gradient = tiles.rows.exchange.gather(own)
        of_entry = of_weight = None
        if need[2]:
            shares = [one.entry_gradient(gradient, one.tile(weight, tiles.held, place)) for place in range(tiles.held)]
            of_entry = joined(shares, 1, 1).view(ctx.shape)
        if need[3]:
            gradients = _Gradients(one, weight, tiles.held)
            for entry in entries:
                gradients.add(entry, gradient)
            of_weight = gradients.whole()
        of_biases = [aligned(rows).sum(0) if any(need[4:]) else None for rows in own.chunk(max(1, len(need[4:])))]
        return None, None, of_entry, of_weight, *of_biases[: len(need[4:])]


def _rows(x: Tensor) -> Tensor:
    """Activations (..., width) as one aligned matrix."""
    return aligned(x.reshape(-1, x.shape[-1]).contiguous())


class TiledLinear(TiledLayer):
    """A linear layer computed in tiles.

    Attributes:
        fanned: as of `by_rows.RowWise`.
    """

    def __init__(self, layer: nn.Module, one: Cut, tiles: Tiles) -> None:
        super().__init__(layer, one, tiles)
        self.bias = layer.bias if layer.bias is None or not one.is_column else self._held(layer.bias)
        self.fanned: dict[str, tuple[Tensor, ...]] = {}


def _in_computing_type(x: Tensor, *parameters: Tensor) -> list[Tensor]:
    """Input and parameters in the type in which torch computes linear layers: within autocast, autocast's type."""
    found = [x, *parameters]
    if torch.is_autocast_enabled(x.device.type) and x.dtype != torch.float64:
        dtype = torch.get_autocast_dtype(x.device.type)
        found = [one.to(dtype) for one in found]
    return found


class TiledRow(TiledLinear):
    """A row layer: from the held tiles of the inner width to the whole hidden width."""

    def forward(self, x: Tensor) -> Tensor:
        biases = () if self.bias is None else self.fanned.get("bias", (self.bias,))
        x, weight, *biases = _in_computing_type(x, self.computed(self.weight), *biases)
        return _Row.apply(self.tiles, self.cut, x, weight, *biases)


class TiledColumn(TiledLinear):
    """A column layer: from the whole hidden width to the held tiles of the inner width."""

    together: "Together"

    def forward(self, x: Tensor) -> Tensor:
        return self.together.output(self, x)

    def computing(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Input, weight and bias of the computed tiles, in the type of the computation."""
        biases = () if self.bias is None else (self.computed(self.bias),)
        x, weight, *biases = _in_computing_type(x, self.computed(self.weight), *biases)
        return x, weight, next(iter(biases), None)


class Together:
    """Column layers that read the same input: the first call computes all of them, so that their input's gradient is one sum.

    members: in the order in which a tile's shares of that gradient are added.
    """

    def __init__(self, members: Sequence[TiledColumn]) -> None:
        self.members = list(members)
        for member in self.members:
            member.together = self
        self._input: Tensor | None = None
        self.waiting: dict[TiledColumn, Tensor] = {}

    def forget(self) -> None:
        """Drop outputs that were not requested, after a failed forward."""
        self._input, self.waiting = None, {}

    def output(self, member: TiledColumn, x: Tensor) -> Tensor:
        """A member's output for x; the other members' outputs for the same x are kept until they are requested."""
        if self._input is not x or member not in self.waiting:
            self._compute(x)
        found = self.waiting.pop(member)
        if not self.waiting:
            self._input = None
        return found

    def _compute(self, x: Tensor) -> None:
        computing = [member.computing(x) for member in self.members]
        weights, biases = [weight for _, weight, _ in computing], [bias for _, _, bias in computing]
        cuts = tuple(member.cut for member in self.members)
        outputs = _Columns.apply(self.members[0].tiles, cuts, computing[0][0], *weights, *biases)
        self._input, self.waiting = x, dict(zip(self.members, outputs, strict=True))
