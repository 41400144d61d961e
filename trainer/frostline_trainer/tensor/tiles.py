"""The tiles of a run: their number, those that this process computes, and sums over all of them.

A tile is a consecutive share of an inner width: of the heads, or of the width between the two matrices of a feed-forward. Rank r
of a group of g ranks computes the tiles [r T / g, (r + 1) T / g), where T and g are powers of two. So a rank's own sum is one
node of the tree over all tiles, and the bits do not depend on g.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frostline_contract.tile_grid import TileBox, TileGrid
from frostline_trainer.step.alignment import aligned
from frostline_trainer.tensor.hidden import WHOLE_WIDTH, Hidden
from frostline_trainer.tensor.pairs import pairwise
from frostline_trainer.tensor.rows import WHOLE, Rows

Join = Callable[[Tensor], Tensor]
"""A rank's node -> the sum of all ranks' nodes, by pairs in rank order: the same bits on each rank."""


@dataclass(frozen=True)
class Tiles:
    """The tiles that one process computes.

    Args:
        total: tiles of the run, a power of two.
        first: the first tile that this process computes.
        held: how many it computes, consecutively; a power of two.
        join: continues a sum over the group's ranks; None if this process holds all tiles.
        rows: the row tiles that it computes outside of tiled layers.
        hidden: the hidden tiles of its matrices that it computes.
    """

    total: int
    first: int = 0
    held: int = 0
    join: Join | None = None
    rows: Rows = WHOLE
    hidden: Hidden = WHOLE_WIDTH

    def __post_init__(self) -> None:
        if not self.held:
            object.__setattr__(self, "held", self.total)
        assert self.join is not None or self.held == self.total, "some tiles are held and nobody brings the others' sums"

    @property
    def numbers(self) -> range:
        """The held tiles by their numbers in the run."""
        return range(self.first, self.first + self.held)

    @property
    def grid(self) -> TileGrid:
        """All tiles of the run's matrices."""
        return TileGrid(self.total, self.hidden.total)

    @property
    def box(self) -> TileBox:
        """The held tiles of matrices: in the held inner tiles the held hidden ones."""
        return TileBox(self.grid, self.numbers, self.hidden.numbers)

    @property
    def all(self) -> "Tiles":
        """All tiles, computed by one process, for all samples at once."""
        return Tiles(self.total, hidden=Hidden(self.hidden.total))

    @property
    def is_shared(self) -> bool:
        """Whether other members compute other tiles."""
        return self.join is not None or self.hidden.exchange is not None

    def __deepcopy__(self, memo: dict[int, object]) -> "Tiles":
        return self  # a copied unit stays in the same group

    def sum(self, partials: Sequence[Tensor]) -> Tensor:
        """The sum over all tiles, by pairs in tile order.

        Args:
            partials: the held tiles' addends, as `addend` returns them, in tile order.
        """
        node = pairwise(partials)
        return node if self.join is None else self.join(node)

    def hidden_sum(self, partials: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> Tensor:
        """The sum over all tiles of what has the hidden width, of all hidden tiles: (rows, hidden width), rounded once.

        Where members of a group divide a micro-batch's samples it has the rows of the own samples alone.

        Args:
            partials: for each held hidden tile the held inner tiles' addends, as `addend` returns them, in tile order: (rows,
                width), of all samples, the rows of a sample one behind the other.
            dtype: of the sum.
        """
        nodes = [pairwise(own) for own in partials]
        node = nodes[0] if len(nodes) == 1 else torch.cat(nodes, 1)
        exchange = self.rows.exchange
        if exchange is not None:
            node = exchange.scatter_sum(node)
        elif self.join is not None:
            node = self.join(node)
        return self.hidden.whole(node.to(dtype))

    def collected(self, own: Tensor) -> Tensor:
        """All tiles' values in tile order (total, ...), the same bytes on each rank.

        Args:
            own: the held tiles' values in tile order (held, ...), with a multiple of 4 bytes in a row.
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
