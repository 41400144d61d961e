"""The layouts of a unit's state, and the elements of a layout's tensors in each range, by the rules of docs/protocols.md."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor, nn

from tests.oracle.tiles import InTiles


def ranges_of(sizes: list[int], state_ranges: int) -> list[list[tuple[int, int]]]:
    """Return for each range of a unit's state the elements [low, high) of every tensor in it.

    Tensors lie one behind the other, each from a multiple of 64 elements on, and ranges end at such multiples.
    """
    blocks = [-(-size // 64) for size in sizes]
    edges = [number * sum(blocks) // state_ranges for number in range(state_ranges + 1)]
    found = []
    for first, end in zip(edges, edges[1:], strict=False):
        inside, before = [], 0
        for size, count in zip(sizes, blocks, strict=True):
            inside.append(tuple(min(max(edge - before, 0) * 64, size) for edge in (first, end)))
            before += count
        found.append(inside)
    return found


def layouts_of(
    state: Sequence[nn.Parameter], tiles: InTiles | None
) -> list[list[tuple[nn.Parameter, Callable[[Tensor], Tensor]]]]:
    """Return the tensors of each layout of a unit's state: (parameter, what gives the layout's part of a tensor of its shape)."""
    cut = tiles.parts if tiles is not None else {}
    found = [[(parameter, lambda tensor: tensor) for parameter in state if id(parameter) not in cut]]
    for tile in range(tiles.total if tiles is not None else 0):
        found.append([(one, partial(_tile, cut[id(one)], tile)) for one in state if id(one) in cut])
    return found


def _tile(tiles_of: Callable[[Tensor], tuple[Tensor, ...]], tile: int, tensor: Tensor) -> Tensor:
    return tiles_of(tensor)[tile].detach()
