"""A replica's share of a stage's flat gradient, if the state is sharded over replicas: its elements, and their packed layout.

The share consists of runs of elements: of each unit, the parts of trainable parameters that belong to the replica's pieces. The
runs are packed one behind the other, each at a 64-byte boundary and each unit's at UNIT_ALIGNMENT. So a unit's part of a share
has the same layout at its owner, which reduces it, and at its buddy.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from frostline_contract.pieces import Pieces
from frostline_contract.shape import ParallelShape
from frostline_trainer.step.alignment import ALIGNMENT_BYTES
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.gradients import UNIT_ALIGNMENT, GradientBuffers
from frostline_trainer.step.parts import parts_of
from frostline_trainer.step.tied import learning, tie_learns

Run = tuple[int, int]
"""Elements [low, high)."""
TiedParts = dict[int, list[tuple[int, Run]]]
"""By unit with a copy of a tied matrix: (first element in the matrix, run in the flat gradient)."""


@dataclass(frozen=True)
class Share:
    """One replica's elements of a flat gradient.

    Args:
        runs: in the flat gradient, ascending, without overlap.
        places: offset of each run in the packed share.
        slices: each unit's part of the packed share, with the padding that aligns the next.
        length: elements of the packed share.
    """

    runs: tuple[Run, ...]
    places: tuple[int, ...]
    slices: Mapping[int, slice]
    length: int

    def pack(self, flat: torch.Tensor, packed: torch.Tensor) -> None:
        """Copy the share's elements of a flat gradient into the packed share."""
        for (low, high), place in zip(self.runs, self.places, strict=True):
            packed[place : place + high - low].copy_(flat[low:high])

    def view(self, packed: torch.Tensor, low: int, high: int) -> torch.Tensor:
        """Elements [low, high) of the flat gradient, which must lie in one run, as a view of a packed share."""
        number = bisect_right(self.runs, (low, float("inf"))) - 1
        first, end = self.runs[number]
        assert first <= low <= high <= end, f"[{low}, {high}) is no part of [{first}, {end})"
        start = self.places[number] + low - first
        return packed[start : start + high - low]

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

    Attributes:
        all: by replica its share.
        tied: by replica what it reduces of a tied matrix that learns; empty without one.
    """

    def __init__(self, context: RunContext, buffers: GradientBuffers, freeze_point: int, shape: ParallelShape) -> None:
        self._context, self._freeze_point, self._shape = context, freeze_point, shape
        self._offsets = offsets_of(context, buffers, freeze_point)
        self._units = list(buffers.unit_slices)
        self._aligned = ALIGNMENT_BYTES // buffers.parameters[0].element_size() if buffers.parameters else 1
        self.tied = [self._tied_parts(dp_rank) for dp_rank in range(shape.dp_degree)]
        self.all = [self._share(dp_rank) for dp_rank in range(shape.dp_degree)]

    def parts(self, pieces: Iterable[int]) -> dict[tuple[int, str], Run]:
        """(piece, parameter name) -> run in the flat gradient, for all parts that these pieces have of these units."""
        table, units = self._context.pieces, self._context.cut.units
        found = {}
        for piece in pieces:
            unit = table.unit_of(piece)
            for part in parts_of(table, piece, units[unit]) if unit in self._units else ():
                if (unit, part.name) in self._offsets:
                    offset = self._offsets[unit, part.name]
                    found[piece, part.name] = (offset + part.low, offset + part.high)
        return found

    def owns(self, dp_rank: int, piece: int) -> bool:
        """Whether a replica owns a piece."""
        table = self._context.pieces
        return piece in pieces_of_replica(table, table.unit_of(piece), dp_rank, self._shape)

    def _tied_parts(self, dp_rank: int) -> TiedParts:
        if not tie_learns(self._context, self._freeze_point):
            return {}
        found, elements = {}, tied_elements(self._context, dp_rank, self._shape)
        for unit in sorted({0, self._context.num_units - 1} & set(self._units)):
            offset = self._offsets[unit, tied_name(self._context, unit)]
            found[unit] = [(low, (offset + low, offset + high)) for low, high in elements]
        return found

    def _share(self, dp_rank: int) -> Share:
        runs, places, slices, end = list[Run](), list[int](), dict[int, slice](), 0
        for unit in self._units:
            start = end
            pieces = pieces_of_replica(self._context.pieces, unit, dp_rank, self._shape)
            wanted = list(self.parts(pieces).values())
            wanted += [run for _, run in self.tied[dp_rank].get(unit, ())]
            for low, high in joined(wanted):
                end += -end % self._aligned
                runs.append((low, high))
                places.append(end)
                end += high - low
            end += -end % UNIT_ALIGNMENT
            slices[unit] = slice(start, end)
        return Share(tuple(runs), tuple(places), slices, end)


def pieces_of_replica(table: Pieces, unit: int, dp_rank: int, shape: ParallelShape) -> list[int]:
    """The pieces of a unit that a replica owns: those of its share of the ranges, as in `Placement.owners_of`."""
    shares = shape.share_of(table.ranges, dp_rank)
    return [piece for piece in table.of_unit(unit) if table.piece(piece).range in shares]


def tied_elements(context: RunContext, dp_rank: int, shape: ParallelShape) -> list[Run]:
    """The elements of a tied matrix that a replica reduces: those that it owns of either copy, so that both copies get them."""
    table, found = context.pieces, list[Run]()
    for unit in (0, context.num_units - 1):
        name = tied_name(context, unit)
        for piece in pieces_of_replica(table, unit, dp_rank, shape):
            found += [(one.low, one.high) for one in parts_of(table, piece, context.cut.units[unit]) if one.name == name]
    return joined(found)


def offsets_of(context: RunContext, buffers: GradientBuffers, freeze_point: int) -> dict[tuple[int, str], int]:
    """(unit, parameter name) -> where the parameter's gradient begins in the flat gradient of `buffers`."""
    names = [(unit, name) for unit in buffers.unit_slices for name, _ in learning(context, freeze_point, unit)]
    return dict(zip(names, buffers.offsets, strict=True))


def joined(runs: Iterable[Run]) -> list[Run]:
    """Merge runs that overlap, or that only alignment padding separates. Returns them in ascending order."""
    found: list[Run] = []
    for low, high in sorted(run for run in runs if run[0] < run[1]):
        if found and low - found[-1][1] < UNIT_ALIGNMENT // 2:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def tied_name(context: RunContext, unit: int) -> str:
    """Name of the tied matrix's copy in the first or the last unit."""
    tied = context.cut.tied
    assert tied is not None, "no matrix is tied"
    return tied[0] if unit == 0 else tied[1]
