"""How tiles cut the weight of a layer: into equal shares of its inner width and its hidden width, or into runs of a vocabulary's
entries."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frostline_contract.tile_grid import TileBox
from frostline_trainer.step.alignment import aligned
from frostline_trainer.tensor.tiles import cut, joined

ENTRIES_OF = 8
"""A tile of a vocabulary has a multiple of this many entries, but for the last one, which has the rest."""


@dataclass(frozen=True)
class Cut:
    """How a layer's weight is cut into tiles.

    Args:
        is_column: whether the outputs are cut; otherwise the inputs.
        transposed: whether the weight is (in, out), as in GPT-2's Conv1D.
        parts: number of matrices side by side in a column layer's outputs.
    """

    is_column: bool
    transposed: bool = False
    parts: int = 1

    @property
    def dim(self) -> int:
        """The dimension of the weight that inner tiles cut; hidden tiles cut the other one."""
        return int(self.is_column == self.transposed)

    def in_runs(self, box: TileBox) -> bool:
        """Whether the elements of each tile lie one behind the other in a weight with these tiles."""
        return self.dim == 0 and self.parts == 1 and len(box.hidden) == 1

    def tile(self, parameter: Tensor, held: int, place: int) -> Tensor:
        """One of `held` inner tiles of a column layer's bias or its gradient, or of a weight, with all its hidden tiles, as `cut`
        returns it."""
        return cut(parameter, self.dim if parameter.ndim > 1 else 0, self.parts, held, place)

    def tiles(self, weight: Tensor, box: TileBox) -> Iterator[list[Tensor]]:
        """For each inner tile of a weight with these tiles its hidden tiles, each contiguous and aligned."""
        levels = len(box.hidden)
        wide = [weight] if levels == 1 else weight.chunk(levels, 1 - self.dim)
        return ([self.tile(one, len(box.inner), place) for one in wide] for place in range(len(box.inner)))

    def output_tile(self, outputs: Tensor, held: int, place: int) -> Tensor:
        """A tile of a column layer's outputs or of their gradient (rows, out), contiguous and aligned."""
        return cut(outputs, 1, self.parts, held, place)

    def places(self, whole: Tensor, box: TileBox) -> list[Tensor]:
        """Views of the tiles of a weight or its gradient, where they are `in_runs`."""
        return list(whole.chunk(len(box.inner)))

    def view(self, parameter: Tensor, box: TileBox, number: int) -> Tensor:
        """The elements of a tile in a contiguous parameter or gradient with these tiles, in place.

        The shape is (blocks, width) or any contiguous one; the elements are in the tile's flat order.
        """
        (inner, hidden), (held, levels) = box.place_of(number), box.counts
        dim = self.dim if parameter.ndim > 1 else 0
        if levels > 1:
            parameter = parameter.chunk(levels, 1 - dim)[hidden]
        if levels > 1 and dim == 0:
            assert self.parts == 1, "hidden tiles of matrices that lie side by side in a layer's outputs have no such view"
            return parameter.chunk(held)[inner]
        block = parameter.shape[dim:].numel() // self.parts
        return parameter.view(-1, held, block // held)[:, inner]

    def whole(self, tiles: Sequence[Tensor], levels: int = 1) -> Tensor:
        """The parameter or gradient, put together from all its tiles, in the order of their numbers.

        levels: hidden tiles of each inner tile.
        """
        dim = self.dim if tiles[0].ndim > 1 else 0
        if levels > 1:
            tiles = [torch.cat(list(tiles[first : first + levels]), 1 - dim) for first in range(0, len(tiles), levels)]
        return joined(tiles, dim, self.parts)

    def shape_with(self, like: Tensor, held: TileBox, wanted: TileBox) -> torch.Size:
        """The shape of a parameter with the wanted tiles.

        Args:
            like: the parameter with the held tiles.
            held, wanted: the tiles.
        """
        shape, dim = list(like.shape), self.dim if like.ndim > 1 else 0
        shape[dim] = self._width_of(wanted.inner, shape[dim] // len(held.inner))
        if like.ndim > 1:
            shape[1 - dim] = shape[1 - dim] // len(held.hidden) * len(wanted.hidden)
        return torch.Size(shape)

    def _width_of(self, tiles: range, each: int) -> int:
        """Entries of tiles along the dimension that is cut. each: of one of the held ones, where all have equally many."""
        return each * len(tiles)

    def put_together(self, like: Tensor, held: TileBox, wanted: TileBox, found: Mapping[int, Tensor]) -> Tensor:
        """A parameter with the wanted tiles, in new memory.

        Args:
            like: the parameter with the held tiles; only type, device and shape are read.
            held, wanted: the tiles.
            found: elements of tiles by number, in their flat order; a tile that is not there gets no values.
        """
        whole = torch.empty(self.shape_with(like, held, wanted), dtype=like.dtype, device=like.device)
        for tile in wanted.numbers:
            if tile in found:
                view = self.view(whole, wanted, tile)
                view.copy_(found[tile].reshape(view.shape))
        return whole

    def product(self, rows: Tensor, tile: Tensor) -> Tensor:
        """(rows, in) times a tile of the weight: (rows, out), without a bias."""
        return torch.mm(rows, tile if self.transposed else tile.t())

    def entry_gradient(self, gradient: Tensor, tile: Tensor) -> Tensor:
        """The gradient of a product's input (rows, in), from that of the product (rows, out)."""
        return torch.mm(gradient, tile.t() if self.transposed else tile)

    def weight_gradient(self, rows: Tensor, gradient: Tensor, out: Tensor | None = None) -> Tensor:
        """The gradient of a tile of the weight, in the weight's layout. out: the output tensor; None: a new one."""
        return torch.mm(rows.t(), gradient, out=out) if self.transposed else torch.mm(gradient.t(), rows, out=out)


@dataclass(frozen=True)
class VocabularyCut(Cut):
    """How tiles cut a vocabulary: runs of equally many entries, and the rest in the last tile, since few vocabularies divide.

    Args:
        entries: of the whole vocabulary.
        width: entries of every tile but the last.
    """

    is_column: bool = True
    entries: int = 0
    width: int = 0

    @classmethod
    def of(cls, entries: int, total: int) -> "VocabularyCut":
        """The cut of a vocabulary into `total` tiles. Raises ValueError if the last one would have no entry."""
        width = -(-entries // (total * ENTRIES_OF)) * ENTRIES_OF
        if (total - 1) * width >= entries:
            raise ValueError(
                f"training.tensor_tiles.inner is {total}, vocabulary is true, and the vocabulary has {entries} entries: with "
                f"{width} in each tile the last has none; set vocabulary to false, or lower inner"
            )
        return cls(entries=entries, width=width)

    def first(self, tile: int) -> int:
        """The first entry of a tile."""
        return tile * self.width

    def tile_with(self, entries: Tensor) -> Tensor:
        """The tile of each entry."""
        return entries // self.width

    def count(self, tiles: range) -> int:
        """How many entries consecutive tiles have together."""
        return min(tiles.stop * self.width, self.entries) - tiles.start * self.width

    def tile(self, parameter: Tensor, held: int, place: int) -> Tensor:
        return aligned(parameter[self._slice(parameter.shape[0], held, place)].contiguous())

    def output_tile(self, outputs: Tensor, held: int, place: int) -> Tensor:
        return aligned(outputs[:, self._slice(outputs.shape[1], held, place)].contiguous())

    def places(self, whole: Tensor, box: TileBox) -> list[Tensor]:
        held = len(box.inner)
        return [whole[self._slice(whole.shape[0], held, place)] for place in range(held)]

    def view(self, parameter: Tensor, box: TileBox, number: int) -> Tensor:
        place, _ = box.place_of(number)
        return parameter[self._slice(parameter.shape[0], len(box.inner), place)]

    def _width_of(self, tiles: range, each: int) -> int:
        return self.count(tiles)

    def _slice(self, entries: int, held: int, place: int) -> slice:
        """One of `held` equal numbers of tiles, of consecutive tiles with so many entries together."""
        step = -(-entries // self.width) // held * self.width
        return slice(place * step, min((place + 1) * step, entries))
