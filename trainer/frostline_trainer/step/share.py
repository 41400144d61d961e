"""A replica's share of a stage's flat gradient, if the state is sharded over replicas: its elements, and their packed layout.

The share consists of runs of elements: of each unit, the parts of trainable parameters that belong to the replica's pieces; in a
tensor group to its pieces of the member's own tiles, since a line of replicas has the same tiles. The runs are packed one behind
the other, each at a 64-byte boundary and each unit's at UNIT_ALIGNMENT. So without tiles a unit's part of a share has the same
layout at its owner, which reduces it, and at its buddy.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch

from frostline_contract.pieces import Pieces
from frostline_contract.shape import ParallelShape
from frostline_trainer.step.alignment import ALIGNMENT_BYTES
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.gradients import UNIT_ALIGNMENT, GradientBuffers
from frostline_trainer.step.parts import parts_of
from frostline_trainer.step.tied import learning, tie_learns
from frostline_trainer.tensor.state import is_cut, tile_size


class Run(NamedTuple):
    """Elements [low, high) of a flat tensor; with several `rows` the elements `stride` behind them too, and so on."""

    low: int
    high: int
    rows: int = 1
    stride: int = 0

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.rows * (self.high - self.low)

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The run of a flat tensor as a view: flat, or (rows, width)."""
        if self.rows == 1:
            return flat[self.low : self.high]
        shape, strides = (self.rows, self.high - self.low), (self.stride, 1)
        return flat.as_strided(shape, strides, flat.storage_offset() + self.low)

    @classmethod
    def at(cls, view: torch.Tensor, offset: int) -> "Run":
        """Where a view of a parameter, flat or (rows, width), lies in a flat tensor that has the parameter at `offset`."""
        low, width = offset + view.storage_offset(), view.shape[-1]
        return cls(low, low + width) if view.ndim == 1 else cls(low, low + width, view.shape[0], view.stride(0))


Runs = tuple[Run, ...]
"""Runs that are packed one right behind the other."""
TiedParts = dict[int, list[Run]]
"""By unit with a copy of a tied matrix: runs in the flat gradient."""


@dataclass(frozen=True)
class Share:
    """One replica's elements of a flat gradient.

    Args:
        parts: in the flat gradient. Those of one flat run ascend without overlap, and may have several parameters' elements.
        places: offset of each in the packed share.
        slices: each unit's part of the packed share, with the padding that aligns the next.
        length: elements of the packed share.
    """

    parts: tuple[Runs, ...]
    places: tuple[int, ...]
    slices: Mapping[int, slice]
    length: int

    def pack(self, flat: torch.Tensor, packed: torch.Tensor) -> None:
        """Copy the share's elements of a flat gradient into the packed share."""
        for runs, place in zip(self.parts, self.places, strict=True):
            for run in runs:
                view = run.of(flat)
                packed[place : place + run.size].view(view.shape).copy_(view)
                place += run.size

    def view(self, packed: torch.Tensor, runs: Runs) -> torch.Tensor:
        """A part of the share, or a flat run within one, as a flat view of a packed share."""
        if is_flat(runs):
            ((low, high, _, _),) = runs
            number = self._flat[bisect_right(self._flat, low, key=lambda number: self.parts[number][0].low) - 1]
            ((first, end, _, _),) = self.parts[number]
            assert first <= low <= high <= end, f"[{low}, {high}) is no part of [{first}, {end})"
            start = self.places[number] + low - first
        else:
            start = self._others[runs]
        return packed[start : start + sum(run.size for run in runs)]

    @cached_property
    def _flat(self) -> list[int]:
        return [number for number, runs in enumerate(self.parts) if is_flat(runs)]

    @cached_property
    def _others(self) -> dict[Runs, int]:
        return {runs: place for runs, place in zip(self.parts, self.places, strict=True) if not is_flat(runs)}

    def span(self, units: Sequence[int]) -> slice:
        """Where consecutive units lie in a packed share."""
        return slice(self.slices[units[0]].start, self.slices[units[-1]].stop)


class Shares:
    """The shares of all replicas in the gradients of some consecutive units that learn.

    Args:
        context: the run's.
        buffers: the units' gradient buffers; only their layout is used.
        freeze_point: of the step.
        shape: its replicas share each unit's ranges.
        tp_rank: place in its group of the member with these buffers.

    Attributes:
        all: by replica its share.
        tied: by replica what it reduces of a tied matrix that learns; empty without one.
    """

    def __init__(
        self, context: RunContext, buffers: GradientBuffers, freeze_point: int, shape: ParallelShape, tp_rank: int = 0
    ) -> None:
        self._context, self._freeze_point, self._shape, self._tp_rank = context, freeze_point, shape, tp_rank
        self._offsets = offsets_of(context, buffers, freeze_point)
        self._units = list(buffers.unit_slices)
        self._aligned = ALIGNMENT_BYTES // buffers.parameters[0].element_size() if buffers.parameters else 1
        self.tied = [self._tied_parts(dp_rank) for dp_rank in range(shape.dp_degree)]
        self.all = [self._share(dp_rank) for dp_rank in range(shape.dp_degree)]

    def parts(self, pieces: Iterable[int]) -> dict[tuple[int, str], Runs]:
        """(piece, parameter name) -> runs in the flat gradient, for all parts that these pieces have of these units."""
        table, units = self._context.pieces, self._context.cut.units
        found = {}
        for piece in pieces:
            unit = table.unit_of(piece)
            for part in parts_of(table, piece, units[unit]) if unit in self._units else ():
                if (unit, part.name) in self._offsets:
                    like = torch.empty(units[unit].get_parameter(part.name).shape, device="meta")
                    views, offset = part.of(units[unit], like), self._offsets[unit, part.name]
                    found[piece, part.name] = tuple(Run.at(view, offset) for view in views)
        return found

    def owns(self, dp_rank: int, piece: int) -> bool:
        """Whether a replica owns a piece."""
        return piece in self._pieces(self._context.pieces.unit_of(piece), dp_rank)

    def _pieces(self, unit: int, dp_rank: int) -> list[int]:
        return pieces_of_member(self._context.pieces, unit, self._shape, dp_rank, self._tp_rank)

    def _tied_parts(self, dp_rank: int) -> TiedParts:
        if not tie_learns(self._context, self._freeze_point):
            return {}
        found, elements = {}, tied_elements(self._context, self._shape, dp_rank, self._tp_rank)
        for unit in sorted({0, self._context.num_units - 1} & set(self._units)):
            offset = self._offsets[unit, tied_name(self._context, unit)]
            found[unit] = [Run(offset + low, offset + high) for low, high, _, _ in elements]
        return found

    def _share(self, dp_rank: int) -> Share:
        parts, places, slices, end = list[Runs](), list[int](), dict[int, slice](), 0
        for unit in self._units:
            start = end
            wanted = list(self.parts(self._pieces(unit, dp_rank)).values())
            plain = [*(runs[0] for runs in wanted if is_flat(runs)), *self.tied[dp_rank].get(unit, ())]
            for runs in (*((run,) for run in joined(plain)), *(runs for runs in wanted if not is_flat(runs))):
                end += -end % self._aligned
                parts.append(runs)
                places.append(end)
                end += sum(run.size for run in runs)
            end += -end % UNIT_ALIGNMENT
            slices[unit] = slice(start, end)
        return Share(tuple(parts), tuple(places), slices, end)


def is_flat(runs: Runs) -> bool:
    """Whether these are elements one behind the other."""
    return len(runs) == 1 and runs[0].rows == 1


def pieces_of_replica(table: Pieces, unit: int, dp_rank: int, shape: ParallelShape) -> list[int]:
    """The pieces of a unit that a replica owns: those of its share of the ranges, as in `Placement.owners_of`."""
    shares = shape.share_of(table.ranges, dp_rank)
    return [piece for piece in table.of_unit(unit) if table.piece(piece).range in shares]


def pieces_of_member(table: Pieces, unit: int, shape: ParallelShape, dp_rank: int, tp_rank: int) -> list[int]:
    """The pieces of a unit that a member owns: those of its replica, without those of tiles that others of its group compute."""
    tiles = (None, *shape.tiles_of(tp_rank, table.grid))
    return [piece for piece in pieces_of_replica(table, unit, dp_rank, shape) if table.tile_of(piece) in tiles]


def tied_elements(context: RunContext, shape: ParallelShape, dp_rank: int, tp_rank: int) -> list[Run]:
    """The elements of a tied matrix that a member reduces: those that it owns of either copy, so that both copies get them.

    They are counted in the matrix with the member's tiles alone, where tiles cut the vocabulary.
    """
    table, found = context.pieces, list[Run]()
    own = shape.tiles_of(tp_rank, table.grid)
    for unit in (0, context.num_units - 1):
        module, name = context.cut.units[unit], tied_name(context, unit)
        sizes = {tile: tile_size(module, name, tile) for tile in own} if is_cut(module, name) else {}
        for piece in pieces_of_member(table, unit, shape, dp_rank, tp_rank):
            for one in parts_of(table, piece, module):
                if one.name == name:
                    before = sum(size for tile, size in sizes.items() if one.tile is not None and tile < one.tile)
                    found.append(Run(before + one.low, before + one.high))
    return joined(found)


def offsets_of(context: RunContext, buffers: GradientBuffers, freeze_point: int) -> dict[tuple[int, str], int]:
    """(unit, parameter name) -> where the parameter's gradient begins in the flat gradient of `buffers`."""
    names = [(unit, name) for unit in buffers.unit_slices for name, _ in learning(context, freeze_point, unit)]
    return dict(zip(names, buffers.offsets, strict=True))


def joined(runs: Iterable[Run]) -> list[Run]:
    """Merge flat runs that overlap, or that only alignment padding separates. Returns them in ascending order."""
    found: list[Run] = []
    for run in sorted(run for run in runs if run.low < run.high):
        if found and run.low - found[-1].high < UNIT_ALIGNMENT // 2:
            found[-1] = Run(found[-1].low, max(found[-1].high, run.high))
        else:
            found.append(run)
    return found


def tied_name(context: RunContext, unit: int) -> str:
    """Name of the tied matrix's copy in the first or the last unit."""
    tied = context.cut.tied
    assert tied is not None, "no matrix is tied"
    return tied[0] if unit == 0 else tied[1]
