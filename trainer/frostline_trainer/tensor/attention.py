"""Attention, activation functions and dropout computed tile by tile, between column and row layers.

Attention modules of transformers look up a function by the name in their config. This file registers another function, which
calls the original one for each tile of heads, on contiguous operands, with dropout seeded for each tile.
"""

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from frostline_trainer.step.alignment import aligned
from frostline_trainer.tensor.dropout import by_tile
from frostline_trainer.tensor.tiles import Tiles, joined

PREFIX = "frostline_tiles_"
"""Prefix of the name of the attention that is called for each tile."""


def tiled_attention(kind: str) -> Callable[..., tuple[Tensor, None]]:
    """The attention `kind`, tile by tile. It takes queries, keys and values (samples, heads, tokens, width), with the heads of
    all held tiles in order, and returns (samples, tokens, heads, width)."""

    def attend(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, dropout: float = 0.0, **more: Any
    ) -> tuple[Tensor, None]:
        tiles: Tiles = module.frostline_tiles
        heads = [[one.contiguous() for one in whole.chunk(tiles.held, 1)] for whole in (query, key, value)]
        inner = ALL_ATTENTION_FUNCTIONS[kind] if kind != "eager" else _eager_of(module)

        def of_tile(place: int) -> Tensor:
            return _ContiguousGradient.apply(inner(module, *(one[place] for one in heads), mask, dropout=dropout, **more)[0])

        outputs = by_tile(tiles, module.frostline_site, query.device, dropout > 0.0, of_tile)
        return torch.cat(outputs, 2), None

    return attend


def _eager_of(module: nn.Module) -> Callable[..., tuple[Tensor, Tensor]]:
    """The eager attention function of the module's model."""
    return next(
        vars(sys.modules[kind.__module__])["eager_attention_forward"]
        for kind in type(module).__mro__
        if "eager_attention_forward" in vars(sys.modules[kind.__module__])
    )


for _kind in ("sdpa", "eager"):
    AttentionInterface.register(PREFIX + _kind, tiled_attention(_kind))


class _ContiguousGradient(torch.autograd.Function):
    """Hands on a tile's result, and hands back its gradient in memory of its own. Where a worker computes several tiles, the
    gradient is a slice of theirs; kernels take a narrow slice one element at a time, with other bits than in a vector."""

    @staticmethod
    def forward(ctx: Any, result: Tensor) -> Tensor:
        return result.view_as(result)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return aligned(gradient.contiguous())


class TiledActivation(nn.Module):
    """An activation function that is called for each tile of its input separately, since some activation kernels give an element
    other bits on a view or at a vector's end. The same holds for their gradients."""

    def __init__(self, function: nn.Module, tiles: Tiles) -> None:
        super().__init__()
        self.function, self.tiles = function, tiles

    def forward(self, x: Tensor) -> Tensor:
        tiles = [self.function(tile.contiguous()) for tile in x.chunk(self.tiles.held, -1)]
        return joined([_ContiguousGradient.apply(tile) for tile in tiles], -1, 1)


class TiledDropout(nn.Module):
    """A dropout before a row layer's adapter, called for each tile with the tile's seed, so that a tile's mask does not depend on
    which tiles are computed.

    site: name within the unit, of the layer that has the adapter.
    """

    def __init__(self, function: nn.Module, tiles: Tiles, site: str) -> None:
        super().__init__()
        self.function, self.tiles, self.site = function, tiles, site

    def forward(self, x: Tensor) -> Tensor:
        tiles = [tile.contiguous() for tile in x.chunk(self.tiles.held, -1)]
        found = by_tile(self.tiles, self.site, x.device, self.training, lambda place: self.function(tiles[place]))
        return joined([_ContiguousGradient.apply(tile) for tile in found], -1, 1)
