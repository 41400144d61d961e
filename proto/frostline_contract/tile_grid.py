"""The grid of tensor tiles: how many cut the inner widths and the hidden width, and how the tiles of a matrix are numbered."""

from dataclasses import dataclass
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

    @property
    def all(self) -> "TileBox":
        """All of its tiles."""
        return TileBox(self, range(self.inner), range(self.hidden))

    def one(self, number: int) -> "TileBox":
        """The tile with a number."""
        inner, hidden = divmod(number, self.hidden)
        return TileBox(self, range(inner, inner + 1), range(hidden, hidden + 1))

    def numbers(self, inner: range, hidden: range) -> tuple[int, ...]:
        """The numbers of the tiles at all these places, ascending: those of one inner tile follow each other."""
        return tuple(one * self.hidden + other for one in inner for other in hidden)


WHOLE = TileGrid()
"""The grid of matrices that nothing cuts."""


@dataclass(frozen=True)
class TileBox:
    """Some tiles of a grid: those in some consecutive inner tiles and some consecutive hidden tiles."""

    grid: TileGrid
    inner: range
    hidden: range

    @property
    def numbers(self) -> tuple[int, ...]:
        """The tiles' numbers, ascending, which is their order in a tensor that has these tiles."""
        return self.grid.numbers(self.inner, self.hidden)

    @property
    def counts(self) -> TileGrid:
        """How many tiles along each width."""
        return TileGrid(len(self.inner), len(self.hidden))

    def place_of(self, number: int) -> tuple[int, int]:
        """The place of a tile along the inner and the hidden width, counted from the first of these. It must be one of them."""
        inner, hidden = divmod(number, self.grid.hidden)
        assert inner in self.inner and hidden in self.hidden, f"tile {number} is none of {self.numbers}"
        return inner - self.inner.start, hidden - self.hidden.start
