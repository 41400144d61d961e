"""Which tiles of a unit's weights its module holds, where tiles have pieces of their own (docs/adr/0018-tensor-tiles.md, 11).

A member of a tensor group that computes some tiles of a block has in the module these tiles alone: the parameters of column and
row layers are smaller, and so are their gradients. A frozen block has all tiles, those of other members as a copy. State of tiles
that a worker has and does not compute (as a buddy, or because it arrived or is to be sent) is **beside** the module: flat, by
piece and parameter. Reading and writing a part does not depend on where it is (`local_shards.part_of`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import nn

from frostline_contract.pieces import Pieces
from frostline_contract.shape import ParallelShape
from frostline_contract.tile_grid import TileBox, TileGrid
from frostline_trainer.step.parts import Part, flat, parts_of, weights_of
from frostline_trainer.tensor.group import gather_runs
from frostline_trainer.tensor.install import share_tiles
from frostline_trainer.tensor.layer import TiledLayer
from frostline_trainer.tensor.rows import WHOLE
from frostline_trainer.tensor.state import cut_layers, has_memory, release, shape_with, tile_size
from frostline_trainer.tensor.tiles import Tiles
from frostline_trainer.transport.collectives import Group

TilesBeside = dict[tuple[int, str], torch.Tensor]
"""(piece, parameter name) -> the piece's elements of the tile, flat, in aligned memory of their own."""


def tiles_beside(unit: nn.Module) -> TilesBeside:
    """The tiles beside the unit's module; may be changed."""
    return vars(unit).setdefault("tiles_beside", {})


def make_room_for_tile(unit: nn.Module, table: Pieces, piece: int) -> None:
    """Make room, still without values, beside the module for a tile's piece to be loaded into, unless the module has the tile."""
    for part in parts_of(table, piece, unit):
        parameter = unit.get_parameter(part.name)
        if (piece, part.name) not in tiles_beside(unit) and not _is_inside(unit, part):
            tiles_beside(unit)[piece, part.name] = parameter.new_empty(part.high - part.low)


def _is_inside(unit: nn.Module, part: Part) -> bool:
    layer = cut_layers(unit)[part.name]
    return part.tile in layer.kept.box.numbers and has_memory(unit.get_parameter(part.name))


@torch.no_grad()
def keep_tiles(unit: nn.Module, table: Pieces, index: int, tiles: Tiles | None, here: Collection[int]) -> None:
    """Let a module hold these tiles from now on, with their values as far as they are here.

    Args:
        unit: the unit.
        table: the run's pieces.
        index: the unit's number.
        tiles: the tiles; None: none, so that weights which tiles cut take no memory in the module.
        here: pieces whose state this worker has or is to have; tiles of them that the module does not hold stay beside it, or get
            room there. All others are dropped.
    """
    wanted = tiles.box if tiles is not None else None
    parts = [(piece, part) for piece in table.of_unit(index) if table.tile_of(piece) is not None
             for part in parts_of(table, piece, unit)]  # fmt: skip
    layers = cut_layers(unit)
    for name, layer in layers.items():
        _keep_tiles_of(unit, name, layer, [one for one in parts if one[1].name == name], wanted, here)
    for layer in set(layers.values()):
        layer.kept = without_group(tiles) if tiles is not None else layer.kept


def _keep_tiles_of(
    unit: nn.Module,
    name: str,
    layer: TiledLayer,
    parts: Sequence[tuple[int, Part]],
    wanted: TileBox | None,
    here: Collection[int],
) -> None:
    """Let one parameter have these tiles.

    Args:
        unit, here: as of `keep_tiles`.
        name: of the parameter.
        layer: that has it.
        parts: (piece, part) of all its tiles.
        wanted: the tiles; None: none.
    """
    parameter, numbers = unit.get_parameter(name), wanted.numbers if wanted is not None else ()
    known = _take_apart(unit, name, layer, parts)
    for piece, part in parts:
        if piece in here and part.tile not in numbers:
            own = known.of(piece, part)
            tiles_beside(unit)[piece, name] = own.clone() if own is not None else parameter.new_empty(part.high - part.low)
    if wanted is None:
        release(parameter)
    elif numbers != known.inside or any(piece in known.apart for piece, part in parts if part.tile in numbers):
        found = _fill_tiles([(piece, part) for piece, part in parts if part.tile in numbers], known)
        parameter.data = layer.cut.put_together(parameter, layer.kept.box, wanted, found)
    parameter.grad = None


@dataclass(frozen=True)
class _Known:
    """The values of one parameter's tiles that this worker has.

    Attributes:
        unit, name: of the parameter.
        inside: tiles that the module has.
        apart: by piece, those that were beside it.
    """

    unit: nn.Module
    name: str
    inside: tuple[int, ...]
    apart: dict[int, torch.Tensor]

    def of(self, piece: int, part: Part) -> torch.Tensor | None:
        """A part's values, flat; None: they are not here. What lies beside the module comes before what is in it."""
        if piece in self.apart or part.tile not in self.inside:
            return self.apart.get(piece)
        return flat(part.of(self.unit, self.unit.get_parameter(self.name).data))


def _take_apart(unit: nn.Module, name: str, layer: TiledLayer, parts: Sequence[tuple[int, Part]]) -> _Known:
    """All values of one parameter that are here; nothing of it lies beside the module any more."""
    beside = tiles_beside(unit)
    inside = layer.kept.box.numbers if has_memory(unit.get_parameter(name)) else ()
    return _Known(unit, name, inside, {piece: beside.pop((piece, name)) for piece, _ in parts if (piece, name) in beside})


def _fill_tiles(parts: Sequence[tuple[int, Part]], known: _Known) -> dict[int, torch.Tensor]:
    """The flat elements of each tile of these parts, by number; a tile of which no value is known is left out."""
    found = dict[int, torch.Tensor]()
    for piece, part in parts:
        own = known.of(piece, part)
        if own is not None and part.tile is not None:
            if part.tile not in found:
                found[part.tile] = own.new_empty(tile_size(known.unit, known.name, part.tile))
            found[part.tile][part.low : part.high] = own
    return found


def without_group(tiles: Tiles) -> Tiles:
    """The same tiles for a module that outlives its group: it sums by the tiles that it computes (`TiledLinear.tiles`)."""
    if not tiles.is_shared:
        return tiles
    hidden = tiles.hidden if tiles.hidden.exchange is None else replace(tiles.hidden, exchange=_NoExchange())
    return replace(tiles, join=_no_sum if tiles.join is not None else None, rows=WHOLE, hidden=hidden)


def _no_sum(node: torch.Tensor) -> torch.Tensor:
    raise AssertionError("held tiles are summed by nobody")


class _NoExchange:
    """The levels of a module that outlives its group."""

    def sum(self, node: torch.Tensor) -> torch.Tensor:
        raise AssertionError("held hidden tiles are summed by nobody")

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        raise AssertionError("held hidden tiles are gathered by nobody")


def hold_all_tiles(unit: nn.Module) -> None:
    """Give a module memory for all tiles, without values where it lacks some; nothing is beside it any more."""
    tiles_beside(unit).clear()
    layers = cut_layers(unit)
    for name, layer in layers.items():
        parameter = unit.get_parameter(name)
        held, whole = layer.kept.box, layer.kept.grid.all
        if held != whole or not has_memory(parameter):
            parameter.data, parameter.grad = layer.cut.put_together(parameter, held, whole, {}), None
    for layer in set(layers.values()):
        layer.kept = layer.kept.all


@torch.no_grad()
def gather_tiles(group: Group, shape: ParallelShape, unit: nn.Module, table: Pieces, index: int, kept: Collection[int]) -> None:
    """All-gather the tiles of a unit whose module has room for all of them. Collective over a tensor group.

    Each member's own tiles must be whole, also where ranges of them are a copy.

    Args:
        group, shape: the group, and the shape that it is of.
        unit, table, index: as of `keep_tiles`.
        kept: pieces whose state this member has; their weights are not overwritten.
    """
    weights = weights_of(unit)
    rows: list[list[tuple[bool, torch.Tensor]]] = [[] for _ in range(group.size)]
    for piece in table.of_unit(index):
        if (tile := table.tile_of(piece)) is not None:
            row = rows[shape.place_of_tile(tile, table.grid)]
            for part in parts_of(table, piece, unit):
                row += [(piece in kept, view) for view in part.of(unit, weights[part.name])]
    gather_runs(group, rows)


@contextmanager
def exchanged_tiles(group: Group, units: Iterable[nn.Module], tiles: Tiles, ahead: int) -> Iterator[None]:
    """Let modules hold and compute, for a while, the tiles of the member `ahead` places on in a tensor group. Collective.

    The members' own tiles keep their memory, so the others' come on top: of the weights alone, in the audited step alone. Modules
    that hold all tiles, which are frozen, stay as they are. Afterwards the caller shares the tiles out again.

    tiles: those of the other member.
    """
    cut = [(unit, layers) for unit in units if (layers := cut_layers(unit)) and _held_by(layers) == tiles.box.counts]
    own = [(unit, {name: unit.get_parameter(name).data for name in layers}) for unit, layers in cut]
    kept = {layer: layer.kept for _, layers in cut for layer in layers.values()}
    try:
        for unit, weights in own if ahead else ():
            shapes = {name: shape_with(layer, weights[name], tiles.box) for name, layer in cut_layers(unit).items()}
            for name, tensor in _weights_ahead(group, weights, shapes, ahead).items():
                unit.get_parameter(name).data = tensor
        for layer in kept:
            layer.kept = without_group(tiles)
        for unit, _ in cut:
            share_tiles(unit, tiles)
        yield
    finally:
        for unit, weights in own:
            for name, tensor in weights.items():
                unit.get_parameter(name).data = tensor
        for layer, before in kept.items():
            layer.kept = before


def _held_by(layers: Mapping[str, TiledLayer]) -> TileGrid:
    """How many tiles of its matrices a unit's module holds."""
    return next(iter(layers.values())).kept.box.counts


@torch.no_grad()
def _weights_ahead(
    group: Group, own: Mapping[str, torch.Tensor], shapes: Mapping[str, torch.Size], ahead: int
) -> dict[str, torch.Tensor]:
    """The weights of the member `ahead` places on, in aligned memory of their own. Collective.

    own: this member's, which another one gets. shapes: of those that it gets, with the same names.
    """
    flat, sizes = torch.cat([tensor.reshape(-1) for tensor in own.values()]), [shapes[name].numel() for name in own]
    sent, received = [0] * group.size, [0] * group.size
    sent[(group.index - ahead) % group.size], received[(group.index + ahead) % group.size] = flat.numel(), sum(sizes)
    there = flat.new_empty(sum(sizes))
    group.all_to_all(there, flat, received, sent)
    return {name: part.view(shapes[name]).clone() for name, part in zip(own, there.split(sizes), strict=True)}
