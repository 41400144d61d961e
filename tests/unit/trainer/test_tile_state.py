"""The tiles that a unit's module holds, and those beside it: the same state and the same updates, in less memory."""

import copy

import pytest
import torch
from torch import nn

from frostline_contract.job.training import OptimizerSection
from frostline_contract.pieces import Pieces
from frostline_contract.shape import ParallelShape
from frostline_trainer.step.local_shards import drop_shards, join_unit, shard_unit, weight_bytes
from frostline_trainer.step.optimizer import Moments, UnitOptimizer
from frostline_trainer.step.packing import pack, unpack
from frostline_trainer.step.parts import flat, parts_of, write
from frostline_trainer.step.tile_state import gather_tiles, keep_tiles, tiles_beside
from frostline_trainer.step.unit_state import export_piece, import_piece, release_unit, take_whole, unit_digest
from frostline_trainer.tensor.state import cut_layers
from frostline_trainer.tensor.tiles import Tiles
from tests.exact_cases import NUM_UNITS
from tests.unit.trainer.group_threads import in_group
from tests.unit.trainer.test_tile_pieces import UNIT, block, give_gradients

TILES = 2
FAMILIES = ("gpt2_untied", "bert_classification")
TABLES = pytest.mark.parametrize("table", [Pieces.cut(NUM_UNITS, ranges, TILES) for ranges in (1, 3)], ids=["whole", "ranges"])
COMMON, FIRST, SECOND = None, 0, 1


def pieces_of(table: Pieces, *tiles: int | None) -> list[int]:
    """Return the block's pieces of these tiles, or of what no tile cuts."""
    return [piece for piece in table.of_unit(UNIT) if table.tile_of(piece) in tiles]


def half(tile: int) -> Tiles:
    return Tiles(TILES, tile, 1, lambda node: node)


def digests(module: nn.Module, moments: Moments, table: Pieces, *tiles: int | None) -> list[bytes]:
    return [unit_digest(export_piece(table, piece, module, moments)) for piece in pieces_of(table, *tiles)]


@TABLES
@pytest.mark.parametrize("family", FAMILIES)
def test_a_member_holds_its_tiles_and_gives_them_back(family: str, table: Pieces) -> None:
    """What the module does not hold stays beside it where it is needed, and is dropped where it is not."""
    whole, module = block(family), block(family)
    full, every = weight_bytes(whole), (COMMON, FIRST, SECOND)
    common = sum((part.high - part.low) * 4 for piece in pieces_of(table, COMMON) for part in parts_of(table, piece, whole))
    for tile, other in ((0, SECOND), (1, FIRST), (0, SECOND)):
        keep_tiles(module, table, UNIT, half(tile), pieces_of(table, other))
        assert digests(module, {}, table, *every) == digests(whole, {}, table, *every)
        assert {piece for piece, _ in tiles_beside(module)} == set(pieces_of(table, other))
        assert weight_bytes(module, ()) == common + (full - common) // 2 and weight_bytes(module) == full
    keep_tiles(module, table, UNIT, Tiles(TILES), [])
    assert all(map(torch.equal, module.state_dict().values(), whole.state_dict().values()))
    keep_tiles(module, table, UNIT, half(1), [])
    assert weight_bytes(module) == common + (full - common) // 2
    last = pieces_of(table, SECOND)[-1:]
    keep_tiles(module, table, UNIT, None, last)
    assert weight_bytes(module, ()) == common
    assert unit_digest(export_piece(table, last[0], module, {})) == digests(whole, {}, table, SECOND)[-1]
    drop_shards(module, pieces_of(table, COMMON))
    assert weight_bytes(module) == common


@TABLES
@pytest.mark.parametrize("tiles", [half(0), half(1), Tiles(TILES), None], ids=["first", "second", "all", "none"])
def test_pieces_arrive_in_a_released_unit_without_the_memory_of_others(tiles: Tiles | None, table: Pieces) -> None:
    source, target = block("gpt2_untied"), block("gpt2_untied")
    moments, arrived = Moments(), Moments()
    give_gradients(1, source)
    UnitOptimizer(OptimizerSection(), [(UNIT, source)], moments, table).step(0.1)
    release_unit(target)
    came = [*reversed(pieces_of(table, SECOND)), *pieces_of(table, COMMON)]
    for piece in came:
        import_piece(table, piece, target, arrived, unpack(pack(export_piece(table, piece, source, moments))))
    size = sum((part.high - part.low) * 4 for piece in came for part in parts_of(table, piece, source))
    assert weight_bytes(target) == size
    keep_tiles(target, table, UNIT, tiles, came)
    wanted = digests(source, moments, table, COMMON, SECOND)
    assert digests(target, arrived, table, COMMON, SECOND) == wanted
    shard_unit(target, table, came)
    assert weight_bytes(target) == size and digests(target, arrived, table, COMMON, SECOND) == wanted
    join_unit(target, table)
    keep_tiles(target, table, UNIT, tiles, came)
    assert digests(target, arrived, table, COMMON, SECOND) == wanted
    take_whole(target)
    assert not tiles_beside(target) and weight_bytes(target) == weight_bytes(source)


@TABLES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("section", [OptimizerSection(), OptimizerSection(name="sgd")], ids=lambda one: one.name)
def test_a_tile_is_updated_to_the_same_bits_wherever_it_is(section: OptimizerSection, dtype: torch.dtype, table: Pieces) -> None:
    """In a module with all tiles, in one with this tile alone, in local shards, and beside a module, from the gradients that a
    buddy receives."""
    whole = block("gpt2_untied", dtype)
    alone, beside, sharded = (copy.deepcopy(whole) for _ in range(3))
    keep_tiles(alone, table, UNIT, half(1), [])
    keep_tiles(beside, table, UNIT, half(0), pieces_of(table, SECOND))
    keep_tiles(sharded, table, UNIT, half(1), [])
    shard_unit(sharded, table, pieces_of(table, COMMON, SECOND))
    moments = [Moments() for _ in range(4)]
    for seed in range(3):
        give_gradients(seed, whole)
        for name, parameter in alone.named_parameters():
            gradient, layer = whole.get_parameter(name).grad, cut_layers(alone).get(name)
            parameter.grad = gradient if layer is None else layer.cut.tile(gradient, TILES, 1).clone()
            beside.get_parameter(name).requires_grad_(True)
            sharded.get_parameter(name).requires_grad_(True)
        given = {(piece, part.name): flat(part.of(whole, whole.get_parameter(part.name).grad)).clone()
                 for piece in pieces_of(table, COMMON, SECOND) for part in parts_of(table, piece, whole)}  # fmt: skip
        UnitOptimizer(section, [(UNIT, whole)], moments[0], table).step(0.1)
        UnitOptimizer(section, [(UNIT, alone)], moments[1], table, pieces_of(table, COMMON, SECOND)).step(0.1)
        UnitOptimizer(section, [(UNIT, beside)], moments[2], table, pieces_of(table, SECOND)).step(0.1, given)
        UnitOptimizer(section, [(UNIT, sharded)], moments[3], table, pieces_of(table, COMMON, SECOND)).step(0.1, given)
    wanted = digests(whole, moments[0], table, COMMON, SECOND)
    assert digests(alone, moments[1], table, COMMON, SECOND) == digests(sharded, moments[3], table, COMMON, SECOND) == wanted
    assert digests(beside, moments[2], table, SECOND) == wanted[table.ranges :]


@TABLES
@pytest.mark.parametrize("family", FAMILIES)
def test_a_group_gathers_a_frozen_blocks_tiles_and_overwrites_no_state(family: str, table: Pieces) -> None:
    whole = block(family)

    def member(group: object) -> tuple[list[torch.Tensor], list[bytes]]:
        module, (own, other) = copy.deepcopy(whole), ((FIRST, SECOND), (SECOND, FIRST))[group.index]
        keep_tiles(module, table, UNIT, half(group.index), [])
        keep_tiles(module, table, UNIT, Tiles(TILES), [])
        gather_tiles(group, ParallelShape(1, 1, tp_columns=2), module, table, UNIT, pieces_of(table, COMMON, own))
        found = [tensor.clone() for tensor in module.state_dict().values()]
        with torch.no_grad():
            for piece in pieces_of(table, other):
                for part in parts_of(table, piece, module):
                    write(part.of(module, module.get_parameter(part.name)), torch.full((part.high - part.low,), 5.0))
        kept = digests(module, {}, table, other)
        gather_tiles(group, ParallelShape(1, 1, tp_columns=2), module, table, UNIT, table.of_unit(UNIT))
        assert digests(module, {}, table, other) == kept, "a buddy's copy is state"
        return found, kept

    for found, kept in in_group(TILES, member):
        assert all(map(torch.equal, found, whole.state_dict().values())) and kept != digests(whole, {}, table, FIRST)
