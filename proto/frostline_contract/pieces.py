"""Pieces: the parts of the run's state that are owned, moved, kept by buddies, covered, checkpointed and digested.

A unit is what is computed, frozen and cut; its state (weights, persistent buffers, optimizer moments) consists of pieces. They
are fixed for a run and the same on any placement, so that every worker, plan and checkpoint means the same by a piece's number.
With one piece a unit a piece's number is its unit's.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from frostline_contract.record import Frozen
from frostline_contract.tile_grid import TileGrid

COMMON = "common"
"""Key of the part that holds all uncut tensors: the whole of a unit's state, unless its tiles have pieces of their own."""
RANGE_ALIGNMENT = 64
"""A range begins at a multiple of this many elements, so that its memory is aligned as the whole unit's is."""

NOBODY = -1
"""Entry for "no participant" in a plan's tables of participants by piece."""


class PieceHolders(Frozen):
    """The holders of one piece's state at the plan's start, as indices into Plan.participants."""

    participants: tuple[int, ...] = ()


@dataclass(frozen=True)
class Piece:
    """A fixed part of a unit's state: one range of the flat layout of one tile of its tensors.

    Args:
        unit: index of the unit.
        tile: key of the tile: `COMMON`, or the tile's number as text.
        range: index of the range, from 0.
    """

    unit: int
    tile: str
    range: int


@dataclass(frozen=True)
class Pieces:
    """The table of a run's pieces, numbered from 0 without gaps: by unit, then by tile, then by range.

    Args:
        num_units: of the model.
        ranges: into how many ranges each tile's flat layout is cut (`training.state_ranges`).
        tiles: keys of each unit's tiles, in order.
        hidden: into how many of these tiles the hidden width is cut at each inner tile (`TileGrid`).

    Raises:
        ValueError: for fewer than one range, or no tile.
    """

    num_units: int
    ranges: int = 1
    tiles: tuple[str, ...] = (COMMON,)
    hidden: int = 1

    def __post_init__(self) -> None:
        if self.ranges < 1 or not self.tiles:
            raise ValueError(f"{self.ranges} ranges of {len(self.tiles)} tiles; each unit's state needs at least one of both")

    @classmethod
    def cut(cls, num_units: int, ranges: int = 1, tiles: int = 1, hidden: int = 1) -> "Pieces":
        """The table of a run.

        Args:
            num_units: of the model.
            ranges: `training.state_ranges`.
            tiles: that have pieces of their own, those of the grid of `training.tensor_tiles`; 1: none has.
            hidden: of them at each inner tile.
        """
        return cls(num_units, ranges, (COMMON, *map(str, range(tiles))), hidden) if tiles > 1 else cls(num_units, ranges)

    @property
    def state_tiles(self) -> int:
        """Tiles that have pieces of their own; 1 where none has."""
        return max(1, len(self.tiles) - 1)

    @property
    def grid(self) -> TileGrid:
        """The grid of the tiles that have pieces of their own; a single tile where none has."""
        return TileGrid(self.state_tiles // self.hidden, self.hidden)

    def tile_of(self, number: int) -> int | None:
        """The tile whose piece this is; None for what no tile cuts."""
        place = number % self.per_unit // self.ranges
        return place - 1 if place else None

    @property
    def per_unit(self) -> int:
        """Pieces of each unit."""
        return self.ranges * len(self.tiles)

    @property
    def count(self) -> int:
        """Pieces of the run."""
        return self.num_units * self.per_unit

    def number(self, piece: Piece) -> int:
        """The piece's number."""
        return piece.unit * self.per_unit + self.tiles.index(piece.tile) * self.ranges + piece.range

    def piece(self, number: int) -> Piece:
        """The piece that has a number."""
        unit, inside = divmod(number, self.per_unit)
        tile, place = divmod(inside, self.ranges)
        return Piece(unit, self.tiles[tile], place)

    def unit_of(self, number: int) -> int:
        """The unit that a piece belongs to."""
        return number // self.per_unit

    def place_of(self, number: int) -> int:
        """A piece's place among its unit's, from 0."""
        return number % self.per_unit

    def of_unit(self, unit: int) -> range:
        """The numbers of a unit's pieces."""
        return range(unit * self.per_unit, (unit + 1) * self.per_unit)

    def of_units(self, units: Iterable[int]) -> list[int]:
        """The numbers of several units' pieces, unit after unit as given."""
        return [number for unit in units for number in self.of_unit(unit)]

    def units_of(self, numbers: Iterable[int]) -> list[int]:
        """The units that have at least one of these pieces, ascending."""
        return sorted({self.unit_of(number) for number in numbers})

    def bounds(self, place: int, length: int) -> tuple[int, int]:
        """First element of range `place` in the flat layout of a tile, of `length` elements, and the first one behind it.

        Ranges are as even as multiples of RANGE_ALIGNMENT allow; those of a short layout may be empty.
        """
        blocks = -(-length // RANGE_ALIGNMENT)
        low, high = (min(length, RANGE_ALIGNMENT * (blocks * edge // self.ranges)) for edge in (place, place + 1))
        return low, high
