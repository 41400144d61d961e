"""Linear layers computed tile by tile: column layers, whose outputs are cut, and row layers, whose inputs are.

A tile's product is a separate call of fixed shape, on contiguous aligned operands, because libraries choose kernels by shape. A
bias is added after the sum and never fused with a product, because a fused bias is rounded at another point. A column layer's
output is a sum over hidden tiles alone, if there are several; a row layer's is the sum over inner tiles of partial products. In
the backward the gradient of column layers' input is summed over inner tiles, that of a row layer's over hidden tiles. Weights
keep their names and shapes; tiles of them are cut when they are used.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from frostline_trainer.step.alignment import aligned, is_aligned
from frostline_trainer.tensor.cut import Cut
from frostline_trainer.tensor.layer import TiledLayer
from frostline_trainer.tensor.pairs import addend
from frostline_trainer.tensor.tiles import Tiles, cut, joined


class _Gradients:
    """The gradient of a weight, tile by tile: computed in place if tiles are contiguous in the weight, else put together."""

    def __init__(self, one: Cut, weight: Tensor, tiles: Tiles) -> None:
        self._cut, self._levels, self._tiles = one, tiles.hidden.held, list[Tensor]()
        self._whole = torch.empty_like(weight) if one.in_runs(tiles.box) and tiles.held > 1 else None
        self._places = [] if self._whole is None else one.places(self._whole, tiles.box)
        if not all(is_aligned(place) for place in self._places):
            self._whole, self._places = None, []

    def add(self, rows: Tensor, gradient: Tensor) -> None:
        """Compute the next tile's gradient, in the order of the tiles' numbers.

        rows: the tile's part of the layer's input. gradient: its part of the gradient of the layer's output.
        """
        place = self._places[len(self._tiles)] if self._places else None
        self._tiles.append(self._cut.weight_gradient(rows, gradient, place))

    def whole(self) -> Tensor:
        return self._cut.whole(self._tiles, self._levels) if self._whole is None else self._whole


class _Columns(torch.autograd.Function):
    """The autograd function of column layers with the same input. The input's gradient is one tree sum over inner tiles for each
    hidden tile; a tile's addend is the sum of its shares from all the layers, in their order."""

    @staticmethod
    def forward(ctx: Any, tiles: Tiles, cuts: tuple[Cut, ...], x: Tensor, *parameters: Tensor | None) -> tuple[Tensor, ...]:
        rows, weights, biases = tiles.hidden.parts(_rows(x)), parameters[: len(cuts)], parameters[len(cuts) :]
        ctx.save_for_backward(*rows, *weights)
        ctx.tiles, ctx.cuts, ctx.shape = tiles, cuts, x.shape
        products = [
            [one.product(part, tile) for part, tile in zip(rows, wide, strict=True)]
            for one, weight in zip(cuts, weights, strict=True)
            for wide in one.tiles(weight, tiles.box)
        ]
        sums, outputs = tiles.hidden.sums(products), []
        for number, (one, bias) in enumerate(zip(cuts, biases, strict=True)):
            found = sums[number * tiles.held : (number + 1) * tiles.held]
            if bias is not None:
                found = [own.add_(one.tile(bias, *_places_of_bias(tiles, place))) for place, own in enumerate(found)]
            outputs.append(joined(found, 1, one.parts).view(*x.shape[:-1], -1))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        tiles, cuts, need, saved = ctx.tiles, ctx.cuts, ctx.needs_input_grad, ctx.saved_tensors
        rows, weights = saved[: tiles.hidden.held], saved[tiles.hidden.held :]
        need_weights, need_biases = need[3 : 3 + len(cuts)], need[3 + len(cuts) :]
        terms: list[list[Tensor]] = [[] for _ in rows]
        of_weights = [_Gradients(one, weight, tiles) for one, weight in zip(cuts, weights, strict=True)]
        of_biases: list[list[Tensor]] = [[] for _ in cuts]
        flat = [_rows(gradient) for gradient in gradients]
        of_entry = [one.tiles(weight, tiles.box) for one, weight in zip(cuts, weights, strict=True)]
        for place in range(tiles.held):
            shares: list[list[Tensor]] = [[] for _ in rows]
            for number, one in enumerate(cuts):
                gradient = one.output_tile(flat[number], tiles.held, place)
                for level, tile in enumerate(next(of_entry[number]) if need[2] else ()):
                    shares[level].append(addend(one.entry_gradient(gradient, tile)))
                for part in rows if need_weights[number] else ():
                    of_weights[number].add(part, gradient)
                if need_biases[number]:
                    of_biases[number].append(gradient.sum(0))
            for level, of_layers in enumerate(shares if need[2] else ()):
                terms[level].append(_in_order(of_layers))
        entry = _in_own_rows(tiles, terms, ctx.shape, rows[0].dtype).view(ctx.shape) if need[2] else None
        biases = _whole_biases(tiles, cuts, of_biases)
        found = [one.whole() if wanted else None for one, wanted in zip(of_weights, need_weights, strict=True)]
        return None, None, entry, *found, *biases


def _in_order(shares: Sequence[Tensor]) -> Tensor:
    """((s0 + s1) + s2) + ...; no share is changed."""
    total = shares[0]
    for share in shares[1:]:
        total = total + share
    return total


def _places_of_bias(tiles: Tiles, place: int) -> tuple[int, int]:
    """(inner tiles that a column layer's bias has, the place among them of the held one at `place`): all of them, where hidden
    tiles cut matrices alone."""
    return (tiles.held, place) if tiles.hidden.total == 1 else (tiles.total, tiles.first + place)


def _whole_biases(tiles: Tiles, cuts: Sequence[Cut], found: Sequence[Sequence[Tensor]]) -> list[Tensor | None]:
    """The gradients of column layers' biases, of all tiles that they have; None where there is none. Collective with hidden
    tiles.

    found: by layer the gradient of each held inner tile.
    """
    wanted = [number for number, own in enumerate(found) if own]
    by_layer = dict(zip(wanted, (found[number] for number in wanted), strict=True))
    if tiles.hidden.total > 1 and wanted:
        own = torch.stack([torch.cat(of_tile) for of_tile in zip(*by_layer.values(), strict=True)])
        parts = tiles.collected(own).split([by_layer[number][0].numel() for number in wanted], 1)
        by_layer = {number: list(part.unbind(0)) for number, part in zip(wanted, parts, strict=True)}
    return [one.whole(by_layer[number]) if number in by_layer else None for number, one in enumerate(cuts)]


def _in_own_rows(tiles: Tiles, terms: Sequence[Sequence[Tensor]], shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """The sum over tiles in the shape of a layer's input, as a matrix; where members divide the samples, zero but for the own
    ones (`gathered`). terms: as of `Tiles.hidden_sum`."""
    total = tiles.hidden_sum(terms, dtype)
    if not tiles.rows.are_divided:
        return total
    whole = torch.zeros(shape.numel() // shape[-1], shape[-1], dtype=dtype, device=total.device)
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
        by_tile = [
            [addend(one.product(entry, tile)) for tile in wide]
            for entry, wide in zip(entries, one.tiles(weight, tiles.box), strict=True)
        ]
        total = tiles.hidden_sum(list(zip(*by_tile, strict=True)), x.dtype)
        return (total + biases[0] if biases else total).view(-1, *x.shape[1:-1], total.shape[-1])

    @staticmethod
    def backward(ctx: Any, output_gradient: Tensor) -> tuple[Any, ...]:
        weight, *entries = ctx.saved_tensors
        tiles, one, need = ctx.tiles, ctx.cut, ctx.needs_input_grad
        own = gradient = _rows(output_gradient)
        if tiles.rows.exchange is not None:
            gradient = tiles.rows.exchange.gather(own)
        parts = tiles.hidden.parts(gradient)
        of_entry = of_weight = None
        if need[2]:
            shares = [
                [one.entry_gradient(part, tile) for part, tile in zip(parts, wide, strict=True)]
                for wide in one.tiles(weight, tiles.box)
            ]
            of_entry = joined(tiles.hidden.sums(shares), 1, 1).view(ctx.shape)
        if need[3]:
            gradients = _Gradients(one, weight, tiles)
            for entry in entries:
                for part in parts:
                    gradients.add(entry, part)
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
        self.bias = self._held(layer.bias) if layer.bias is not None and self.cuts("bias") else layer.bias
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
        biases = () if self.bias is None else (self.bias,)
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
