"""The parts of a piece: for each weight of its unit the range of elements that the piece has, and their optimizer moments.

A piece has a range of the unit's flat layout, in which the unit's weights follow each other in the module's order, each beginning
at a multiple of RANGE_ALIGNMENT elements. So each part begins at such a multiple within its weight, and an update of the part
alone has the bits of an update of the whole weight. Where tiles have pieces of their own (`Pieces.state_tiles`), the layout
consists of the weights that no tile cuts, and each tile has a layout of its own: of that tile of each weight which tiles cut, its
elements in the order in which a module with this tile alone has them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from frostline_contract.pieces import RANGE_ALIGNMENT, Pieces
from frostline_trainer.families.base import still_names
from frostline_trainer.tensor.state import is_cut, tile_size, tile_views

Moments = dict[tuple[int, str], dict[str, torch.Tensor]]
"""(piece, parameter name) -> the optimizer's state of the part of that parameter which the piece has: exp_avg, exp_avg_sq and
step, or momentum_buffer. With one piece a unit a piece's number is its unit's, and the part is the parameter, in its shape."""


def weights_of(unit: nn.Module) -> dict[str, torch.Tensor]:
    """The weights that are state, by name, in the module's order and by reference."""
    still = still_names(unit)
    return {name: tensor.detach() for name, tensor in unit.state_dict().items() if name not in still}


@dataclass(frozen=True)
class Part:
    """Elements [low, high) of a weight, or of one tile of it, counted in its flat order.

    name: the weight's in its unit. tile: number of the tile in the run; None: of the whole weight.
    """

    name: str
    low: int
    high: int
    tile: int | None = None

    def of(self, unit: nn.Module, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The part of a contiguous tensor with the weight's shape in the unit's module, as views in the part's order: one, flat,
        or several where the elements of a tile do not lie one behind the other."""
        if self.tile is None:
            whole = tensor.view(-1)
            return [whole if self.high - self.low == whole.numel() else whole[self.low : self.high]]
        return tile_views(unit, self.name, tensor, self.tile, self.low, self.high)


def flat(views: Sequence[torch.Tensor]) -> torch.Tensor:
    """The elements of a part, flat: in place where it is one flat view, otherwise a copy."""
    if len(views) > 1:
        return torch.cat([view.reshape(-1) for view in views])
    return views[0] if views[0].dim() == 1 and views[0].is_contiguous() else views[0].reshape(-1)


def write(views: Sequence[torch.Tensor], values: torch.Tensor) -> None:
    """Copy values, contiguous and in the part's order, into a part."""
    values, start = values.reshape(-1), 0
    for view in views:
        view.copy_(values[start : start + view.numel()].view(view.shape))
        start += view.numel()


def parts_of(table: Pieces, piece: int, unit: nn.Module) -> list[Part]:
    """A piece's parts, in the layout's order; empty if the unit is so small that nothing falls into the piece's range, or if the
    piece is a tile's and tiles cut none of the unit's weights."""
    weights, tile = weights_of(unit), table.tile_of(piece)
    if table.state_tiles == 1:
        sizes = {name: tensor.numel() for name, tensor in weights.items()}
    elif tile is None:
        sizes = {name: tensor.numel() for name, tensor in weights.items() if not is_cut(unit, name)}
    else:
        sizes = {name: tile_size(unit, name, tile) for name in weights if is_cut(unit, name)}
    starts, length = dict[str, int](), 0
    for name, size in sizes.items():
        starts[name] = length
        length += size + -size % RANGE_ALIGNMENT
    low, high = table.bounds(table.piece(piece).range, length)
    inside = [Part(name, max(low - starts[name], 0), min(high - starts[name], size), tile) for name, size in sizes.items()]
    return [part for part in inside if part.low < part.high]


def moments_of(moments: Moments, pieces: Iterable[int]) -> list[dict[str, torch.Tensor]]:
    """The optimizer's state of every part of these pieces, by reference."""
    wanted = set(pieces)
    return [state for (piece, _), state in moments.items() if piece in wanted]
