"""The tiles of a run: their number, those that this process computes, and sums over all of them.

A tile is a consecutive share of an inner width: of the heads, or of the width between the two matrices of a feed-forward. Rank r
of a group of g ranks computes the tiles [r T / g, (r + 1) T / g), where T and g are powers of two. So a rank's own sum is one
node of the tree over all tiles, and the bits do not depend on g.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frostline_trainer.step.alignment import aligned
from frostline_trainer.tensor.rows import WHOLE, Rows

Join = Callable[[Tensor], Tensor]
"""A rank's node -> the sum of all ranks' nodes, by pairs in rank order: the same bits on each rank."""
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Tiles:
    """The tiles that one process computes.

    Args:
        total: tiles of the run, a power of two.
        first: the first tile that this process computes.
        held: how many it computes, consecutively; a power of two.
        join: continues a sum over the group's ranks; None if this process holds all tiles.
        rows: the row tiles that it computes outside of tiled layers.
    """

    total: int
    first: int = 0
    held: int = 0
    join: Join | None = None
    rows: Rows = WHOLE

    def __post_init__(self) -> None:
        if not self.held:
            object.__setattr__(self, "held", self.total)
        assert self.join is not None or self.held == self.total, "some tiles are held and nobody brings the others' sums"

    @property
    def numbers(self) -> range:
        """The held tiles by their numbers in the run."""
        return range(self.first, self.first + self.held)

    def __deepcopy__(self, memo: dict[int, object]) -> "Tiles":
        return self  # a copied unit stays in the same group

    def sum(self, partials: Sequence[Tensor]) -> Tensor:
        """The sum over all tiles, by pairs in tile order.

        Args:
            partials: the held tiles' addends, as `addend` returns them, in tile order.
        """
        node = pairwise(partials)
        return node if self.join is None else self.join(node)

    def sum_of_own_rows(self, partials: Sequence[Tensor]) -> Tensor:
        """As `sum`, but the rows of the own samples alone, where members of a group divide a micro-batch's samples.

        Args:
            partials: of all samples: (rows, width), the rows of a sample one behind the other.
        """
        exchange = self.rows.exchange
        return self.sum(partials) if exchange is None else exchange.scatter_sum(pairwise(partials))

    def collected(self, own: Tensor) -> Tensor:
        """All tiles' values in tile order (total, ...), the same bytes on each rank.

        Args:
            own: the held tiles' values in tile order (held, ...), of 4 or 8 bytes each.
        """
        if self.join is None:
            return own
        values = own.new_zeros(self.total, *own.shape[1:])
        values[self.first : self.first + self.held] = own
        return self.only(values)

    def only(self, values: Tensor) -> Tensor:
        """The sum of all ranks' tensors where at most one of them is not zero at each element: the bytes of that one.

        They are added as integers, because -0.0 + 0.0 is 0.0. values: contiguous, with a multiple of 4 bytes in a row.
        """
        return values if self.join is None else self.join(values.view(torch.int32)).view(values.dtype)


def addend(partial: Tensor) -> Tensor:
    """A tile's addend to a sum: half precision is raised to float32, so that a sum is rounded once, however ranks divide it."""
    return partial.float() if partial.dtype in HALVES else partial


def pairwise(addends: Sequence[Tensor]) -> Tensor:
    """((a0 + a1) + (a2 + a3)) + ... over a power of two of addends. No addend is changed."""
    level = list(addends)
    while len(level) > 1:
        level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def cut(whole: Tensor, dim: int, parts: int, held: int, place: int) -> Tensor:
    """One of `held` tiles of a dimension, contiguous and aligned; a copy only if necessary.

    Args:
        whole: `parts` matrices side by side along `dim`. Each is cut: a tile of a packed query, key and value has a share of
        each.
        place: of the tile among those held.
    """
    if held == 1:
        return aligned(whole.contiguous())
    width = whole.shape[dim] // (parts * held)
    tile = whole.unflatten(dim, (parts, held, width)).select(dim + 1, place)
    return aligned(tile.flatten(dim, dim + 1).contiguous())


def joined(tiles: Sequence[Tensor], dim: int, parts: int) -> Tensor:
    """The tensor, put together from all tiles that `cut` returns."""
    if len(tiles) == 1:
        return tiles[0]
    if parts == 1:
        return torch.cat(list(tiles), dim)
    width = tiles[0].shape[dim] // parts
    return torch.stack([tile.unflatten(dim, (parts, width)) for tile in tiles], dim + 1).flatten(dim, dim + 2)
