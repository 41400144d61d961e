"""The tiles of a run: how many there are, which of them are computed here, and how sums over all of them are made.

A tile is a consecutive share of an inner width: of the heads, or of the width between the two matrices of a feed-forward. Rank r
of a group of g ranks computes the tiles [r T / g, (r + 1) T / g), T and g powers of two. So what a rank adds up by itself is one
node of the tree over all tiles, and every g gives the same bits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frostline_trainer.step.alignment import aligned

Join = Callable[[Tensor], Tensor]
"""A rank's node to the sum of all ranks' nodes, by pairs in the ranks' order: the same bits on each of them."""
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Tiles:
    """What one process computes of the tiles.

    Args:
        total: tiles of the run, a power of two.
        first: the first tile that is computed here.
        held: how many are, consecutively; a power of two.
        join: how a sum goes on over the group's ranks; None where all tiles are held.
        taught: (first, number) of the tiles whose weights get gradients, where they are fewer: of a member whose work is computed
            again by one who computes all tiles; None: those that are computed.
    """

    total: int
    first: int = 0
    held: int = 0
    join: Join | None = None
    taught: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not self.held:
            object.__setattr__(self, "held", self.total)
        assert self.join is not None or self.held == self.total, "some tiles are held and nobody brings the others' sums"

    @property
    def numbers(self) -> range:
        """The held tiles by their numbers in the run."""
        return range(self.first, self.first + self.held)

    def __deepcopy__(self, memo: dict[int, object]) -> "Tiles":
        return self  # copies of a unit are of the same group

    def sum(self, partials: Sequence[Tensor]) -> Tensor:
        """The sum over all tiles, by pairs in tile order.

        Args:
            partials: what each held tile adds, as `addend` has made it, in tile order.
        """
        node = pairwise(partials)
        return node if self.join is None else self.join(node)


def addend(partial: Tensor) -> Tensor:
    """What a tile adds to a sum: half precision in float32, so that a sum is rounded once, wherever ranks end."""
    return partial.float() if partial.dtype in HALVES else partial


def pairwise(addends: Sequence[Tensor]) -> Tensor:
    """((a0 + a1) + (a2 + a3)) + ... over a power of two of addends, none of which is changed."""
    level = list(addends)
    while len(level) > 1:
        level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def cut(whole: Tensor, dim: int, parts: int, held: int, place: int) -> Tensor:
    """One of `held` tiles of a dimension: contiguous and aligned, a copy only where it must be.

    Args:
        whole: holds `parts` matrices side by side along `dim`, each of which is cut: of a packed query, key and value a tile has
            a share of each.
        place: of the tile among those held.
    """
    if held == 1:
        return aligned(whole.contiguous())
    return aligned(_place(whole, dim, parts, held, place).flatten(dim, dim + 1).contiguous())


def put(whole: Tensor, dim: int, parts: int, held: int, place: int, tile: Tensor) -> None:
    """Write what `cut` gives for a place back there. tile: of as many elements, in any shape."""
    target = _place(whole, dim, parts, held, place)
    target.copy_(tile.view(target.shape))


def _place(whole: Tensor, dim: int, parts: int, held: int, place: int) -> Tensor:
    """Where a tile lies: a view with a dimension more, of the matrices side by side."""
    width = whole.shape[dim] // (parts * held)
    return whole.unflatten(dim, (parts, held, width)).select(dim + 1, place)


def joined(tiles: Sequence[Tensor], dim: int, parts: int) -> Tensor:
    """The tensor that `cut` has cut into these tiles."""
    if len(tiles) == 1:
        return tiles[0]
    if parts == 1:
        return torch.cat(list(tiles), dim)
    width = tiles[0].shape[dim] // parts
    return torch.stack([tile.unflatten(dim, (parts, width)) for tile in tiles], dim + 1).flatten(dim, dim + 2)
