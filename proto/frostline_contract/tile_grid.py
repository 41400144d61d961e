"""The grid of tensor tiles: how many cut the inner widths and the hidden width, and how the tiles of a matrix are numbered."""

from typing import NamedTuple


class TileGrid(NamedTuple):
    """The tiles of each matrix of a block (`training.tensor_tiles`): inner tiles times hidden tiles.

    Attributes:
        inner: tiles of the inner widths: heads, and the width of a feed-forward.
        hidden: tiles of the hidden width.
    """

    inner: int = 1
    hidden: int = 1

    @property
    def size(self) -> int:
        """Tiles of a matrix."""
        return self.inner * self.hidden

    def number(self, inner: int, hidden: int) -> int:
        """The number of a tile, from 0; those of one inner tile follow each other."""
        return inner * self.hidden + hidden

    def numbers(self, inner: range, hidden: range) -> tuple[int, ...]:
        """The numbers of the tiles at all these places, ascending."""
        return tuple(self.number(one, other) for one in inner for other in hidden)


WHOLE = TileGrid()
"""The grid of matrices that nothing cuts."""
