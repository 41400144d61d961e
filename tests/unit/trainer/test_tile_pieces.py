"""Pieces by tile: each element of a unit is in one piece, and the pieces bring, save and update what the whole unit does."""

import copy
from functools import cache

import pytest
import torch
from torch import nn

from frostline_contract.job.training import OptimizerSection
from frostline_contract.pieces import Pieces
from frostline_contract.tile_grid import TileBox, TileGrid
from frostline_trainer.step.optimizer import Moments, UnitOptimizer
from frostline_trainer.step.packing import pack, unpack
from frostline_trainer.step.parts import Part, flat, parts_of
from frostline_trainer.step.tile_state import keep_tiles, tiles_beside
from frostline_trainer.step.unit_state import export_piece, export_unit, import_piece, release_unit, unit_digest
from frostline_trainer.tensor.group import GroupLevels
from frostline_trainer.tensor.hidden import Hidden
from frostline_trainer.tensor.install import tile_unit
from frostline_trainer.tensor.state import cut_layers, is_cut
from frostline_trainer.tensor.table import TensorTable
from frostline_trainer.tensor.tiles import Tiles
from frostline_trainer.transport.collectives import Group
from tests.exact_cases import NUM_UNITS, Case, build_case
from tests.joined_state import joined

UNIT, TILES, SQUARE = 1, TileGrid(2, 1), TileGrid(2, 2)
FAMILIES = ("gpt2_untied", "bert_classification", "llama")
SECTIONS = [OptimizerSection(), OptimizerSection(name="sgd")]


GRIDS = pytest.mark.parametrize("grid", [TILES, SQUARE], ids=lambda grid: f"{grid.inner} x {grid.hidden}")


def table_of(grid: TileGrid, ranges: int = 1) -> Pieces:
    return Pieces.cut(NUM_UNITS, ranges, grid.size, grid.hidden)


TABLE = table_of(TILES)


@cache
def units_of(family: str, grid: TileGrid = TILES) -> tuple[nn.Module, ...]:
    return tuple(build_case(Case(family, dropout=0.0, inner_tiles=grid.inner, hidden_tiles=grid.hidden)).cut.units)


def block(family: str, dtype: torch.dtype = torch.float32, grid: TileGrid = TILES) -> nn.Module:
    """Return a block in tiles."""
    return copy.deepcopy(units_of(family, grid)[UNIT]).to(dtype)


def tiles_in(box: TileBox) -> Tiles:
    """Return the tiles of a member that computes these, for a module that computes nothing."""
    grid, alone = box.grid, GroupLevels(Group(None, "alone", 0, 1))
    hidden = Hidden(grid.hidden, box.hidden.start, len(box.hidden), alone if len(box.hidden) < grid.hidden else None)
    return Tiles(grid.inner, box.inner.start, len(box.inner), lambda node: node, hidden=hidden)


def give_gradients(seed: int, *blocks: nn.Module) -> None:
    drawn = torch.Generator().manual_seed(seed)
    for parameters in zip(*(one.parameters() for one in blocks), strict=True):
        gradient = torch.randn(parameters[0].shape, generator=drawn).to(parameters[0].dtype)
        for parameter in parameters:
            parameter.requires_grad_(True)
            parameter.grad = gradient.clone()


def digests(module: nn.Module, moments: Moments, table: Pieces = TABLE) -> list[bytes]:
    return [unit_digest(export_piece(table, piece, module, moments)) for piece in table.of_unit(UNIT)]


@pytest.mark.parametrize("ranges", [1, 3, 40])
@pytest.mark.parametrize("family", FAMILIES)
@GRIDS
def test_the_pieces_of_a_block_have_each_element_once(grid: TileGrid, family: str, ranges: int) -> None:
    """Each tile's ranges follow each other in the order in which a module with this tile alone has its elements."""
    module, table = block(family, grid=grid), table_of(grid, ranges)
    seen = {name: torch.zeros(tensor.shape, dtype=torch.int32) for name, tensor in module.state_dict().items()}
    by_tile: dict[int | None, list[Part]] = {}
    for piece in table.of_unit(UNIT):
        by_tile.setdefault(table.tile_of(piece), []).extend(parts_of(table, piece, module))
    for part in [part for parts in by_tile.values() for part in parts]:
        views = part.of(module, seen[part.name])
        assert sum(view.numel() for view in views) == part.high - part.low
        for view in views:
            view += 1
    assert all(bool((counts == 1).all()) for counts in seen.values())
    assert {part.name for part in by_tile[None]} == {name for name in seen if not is_cut(module, name)}
    assert list(by_tile) == [None, *range(grid.size)]
    assert len({tuple((part.name, part.low, part.high) for part in by_tile[tile]) for tile in range(grid.size)}) == 1
    for tile in range(grid.size):
        alone = copy.deepcopy(module)
        keep_tiles(alone, table, UNIT, tiles_in(grid.one(tile)), ())
        for part in by_tile[tile]:
            own = flat(part.of(alone, alone.get_parameter(part.name)))
            assert torch.equal(flat(part.of(module, module.get_parameter(part.name))), own)
            assert torch.equal(alone.get_parameter(part.name).view(-1)[part.low : part.high], own)


def test_embedding_and_head_have_pieces_of_tiles_without_parts() -> None:
    """So a piece's number says its unit and its tile."""
    for unit in (0, NUM_UNITS - 1):
        module = units_of("gpt2_untied")[unit]
        assert [bool(parts_of(TABLE, piece, module)) for piece in TABLE.of_unit(unit)] == [True, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
@pytest.mark.parametrize(
    ("family", "ranges", "grid"),
    [
        ("gpt2_untied", 1, TILES),
        ("gpt2_untied", 5, TILES),
        ("bert_classification", 1, TILES),
        ("gpt2_untied", 5, SQUARE),
        ("bert_classification", 1, SQUARE),
    ],
)
def test_an_update_of_each_piece_has_the_bits_of_all(
    family: str, ranges: int, grid: TileGrid, section: OptimizerSection, dtype: torch.dtype
) -> None:
    """It has also those of an update of the whole, unless a tile's bias is shorter than what a kernel computes at once, as with
    SGD in bfloat16: then its last elements are rounded at other points, and to update tile by tile is numerics."""
    table = table_of(grid, ranges)
    plain, parted, alone = (block(family, dtype, grid) for _ in range(3))
    moments = (Moments(), Moments(), Moments())
    for seed in range(3):
        give_gradients(seed, plain, parted, alone)
        UnitOptimizer(section, [(UNIT, plain)], moments[0]).step(0.1)
        UnitOptimizer(section, [(UNIT, parted)], moments[1], table).step(0.1)
        for piece in table.of_unit(UNIT):
            UnitOptimizer(section, [(UNIT, alone)], moments[2], table, [piece]).step(0.1)
    assert digests(alone, moments[2], table) == digests(parted, moments[1], table)
    if (section.name, dtype) != ("sgd", torch.bfloat16):
        pieces = {piece: export_piece(table, piece, parted, moments[1]) for piece in table.of_unit(UNIT)}
        whole = unit_digest(export_unit(UNIT, plain, moments[0]))
        assert unit_digest(joined(table, UNIT, parted, pieces)) == whole


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
@pytest.mark.parametrize(("ranges", "rows"), [(32, 1), (64, 1), (256, 15)])
def test_a_range_of_one_row_has_the_digest_of_a_member_that_holds_this_tile_alone(
    ranges: int, rows: int, section: OptimizerSection
) -> None:
    """Such a range lies in one although its tile does not, where others are held; its moments are flat all the same."""
    module, table = nn.ModuleDict({"up": nn.Linear(16, 256), "down": nn.Linear(256, 128)}), Pieces.cut(1, ranges, TILES.size)
    tile_unit(module, TensorTable(("up",), ("down",)), Tiles(TILES.inner))
    alone, moments, found = copy.deepcopy(module), (Moments(), Moments()), []
    keep_tiles(alone, table, 0, tiles_in(TILES.one(0)), ())
    pieces = [piece for piece in table.of_unit(0) if table.tile_of(piece) == 0]
    parts = [part for piece in pieces for part in parts_of(table, piece, module)]
    down = [part for part in parts if part.name == "down.weight"]
    assert sum(part.low % 128 == 0 and part.high - part.low == 128 for part in down) == rows, "ranges of exactly one row"
    for one, own in zip((module, alone), moments, strict=True):
        give_gradients(1, module)
        for name, layer in cut_layers(alone).items() if one is alone else ():
            whole = module.get_parameter(name).grad
            tile = layer.cut.view(whole, TILES.all, 0)
            alone.get_parameter(name).grad = layer.cut.put_together(whole, TILES.all, layer.kept.box, {0: tile})
        UnitOptimizer(section, [(0, one)], own, table, pieces).step(0.1)
        found.append([unit_digest(export_piece(table, piece, one, own)) for piece in pieces])
    assert found[0] == found[1]


@pytest.mark.parametrize("ranges", [1, 3])
@pytest.mark.parametrize("released", [False, True])
@GRIDS
def test_pieces_bring_the_whole_state_in_any_order(grid: TileGrid, released: bool, ranges: int) -> None:
    table = table_of(grid, ranges)
    source, target = (block("bert_classification", grid=grid) for _ in range(2))
    moments, arrived = Moments(), Moments()
    give_gradients(1, source)
    UnitOptimizer(SECTIONS[0], [(UNIT, source)], moments, table).step(0.1)
    assert digests(source, moments, table) != digests(target, arrived, table)
    if released:
        release_unit(target)
    for piece in reversed(table.of_unit(UNIT)):
        import_piece(table, piece, target, arrived, unpack(pack(export_piece(table, piece, source, moments))))
    assert digests(target, arrived, table) == digests(source, moments, table)
    keep_tiles(target, table, UNIT, Tiles(grid.inner, hidden=Hidden(grid.hidden)), ())
    assert digests(target, arrived, table) == digests(source, moments, table) and not tiles_beside(target)
    assert all(map(torch.equal, target.state_dict().values(), source.state_dict().values()))


def test_a_tile_that_does_not_fit_is_refused_and_nothing_is_changed() -> None:
    module, moments = block("gpt2_untied"), Moments()
    piece, before = TABLE.of_unit(UNIT)[1], digests(module, moments)
    state = export_piece(TABLE, piece, module, moments)
    name = next(iter(state))
    for wrong in (state | {name: state[name][:-8]}, state | {name: state[name].double()}):
        with pytest.raises(ValueError, match=f"piece {piece} of unit {UNIT}: state does not fit the model"):
            import_piece(TABLE, piece, module, moments, wrong)
    assert digests(module, moments) == before
