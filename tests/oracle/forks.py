"""Sums over tiles as plain differentiable torch, forward and backward.

The sums that the trainer computes by hand in its backward are a tree of identities here: a tensor with two readers gets the sum
of their two gradients, and a + b is b + a, so a tree of such forks is the pairwise tree, in whatever order the readers come.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D


def forks_of(x: Tensor, count: int) -> list[Tensor]:
    """Return a tensor once for each of `count` readers. Their gradients are added by pairs, half precision in float32, and the
    sum is rounded once."""
    if count == 1:
        return [x]
    return [one.to(x.dtype) for one in _forked(_wide(x), count)]


def entries_of(x: Tensor, layers: list[nn.Module], count: int) -> dict[nn.Module, list[Tensor]]:
    """Return each layer's inputs by tile. In the backward, a tile's layers are added first to last, then tiles by pairs."""
    dtype, flat = x.dtype, x.reshape(-1, x.shape[-1])
    found: dict[nn.Module, list[Tensor]] = {layer: [] for layer in layers}
    for tile in _forked(_wide(flat), count):
        rest = tile
        for layer in reversed(layers[1:]):
            found[layer].append(rest.view_as(rest).to(dtype))
            rest = rest.view_as(rest)
        found[layers[0]].append(rest.to(dtype))
    return found


def summed(tiles: list[Tensor]) -> Tensor:
    """Return the sum of tiles by pairs; half precision is added in float32, and the sum is rounded once."""
    level = [_wide(one) for one in tiles]
    while len(level) > 1:
        level = [a + b for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0].to(tiles[0].dtype)


def times(x: Tensor, weight: Tensor, layer: nn.Module) -> Tensor:
    """Return a product without a bias."""
    return x @ weight if isinstance(layer, Conv1D) else functional.linear(x, weight)


def apart(tile: Tensor) -> Tensor:
    """Return a tile in memory of its own: for a strided one, autograd uses another product, with other bits, for the gradient."""
    return tile.clone(memory_format=torch.contiguous_format)


def apart_backward(result: Tensor) -> Tensor:
    """Return a tile's result; its gradient arrives in memory of its own, not as a part of all tiles' gradient."""
    if result.requires_grad:
        result.register_hook(lambda gradient: gradient.contiguous())
    return result


def under_autocast(tensor: Tensor) -> Tensor:
    """Return a tensor as autocast would pass it to a linear layer."""
    return tensor.to(torch.bfloat16) if torch.is_autocast_enabled(tensor.device.type) else tensor


def _forked(x: Tensor, count: int) -> list[Tensor]:
    if count == 1:
        return [x]
    return [one for _ in range(2) for one in _forked(x.view_as(x), count // 2)]


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.bfloat16 else x.view_as(x)
