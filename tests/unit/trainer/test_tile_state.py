"""The tiles that a unit's module holds, and those beside it: the same state and the same updates, in less memory."""

import copy

import pytest
import torch
from torch import nn

from frostline_contract.job.training import OptimizerSection
from frostline_contract.pieces import Pieces
from frostline_trainer.step.local_shards import drop_shards, weight_bytes
from frostline_trainer.step.optimizer import Moments, UnitOptimizer
from frostline_trainer.step.packing import pack, unpack
from frostline_trainer.step.parts import parts_of
from frostline_trainer.step.tile_state import gather_tiles, keep_tiles, tiles_beside
from frostline_trainer.step.unit_state import export_piece, import_piece, release_unit, take_whole, unit_digest
from frostline_trainer.tensor.state import cut_layers
from frostline_trainer.tensor.tiles import Tiles
from tests.exact_cases import NUM_UNITS
from tests.unit.trainer.group_threads import in_group
from tests.unit.trainer.test_tile_pieces import UNIT, block, give_gradients

TILES = 2
TABLE = Pieces.cut(NUM_UNITS, tiles=TILES)
COMMON, FIRST, SECOND = TABLE.of_unit(UNIT)
FAMILIES = ("gpt2_untied", "bert_classification")


def half(tile: int) -> Tiles:
    return Tiles(TILES, tile, 1, lambda node: node)


def digest(module: nn.Module, moments: Moments, piece: int) -> bytes:
    return unit_digest(export_piece(TABLE, piece, module, moments))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_member_holds_its_tiles_and_gives_them_back(family: str) -> None:
    """What the module does not hold stays beside it where it is needed, and is dropped where it is not."""
    whole, module = block(family), block(family)
    full = weight_bytes(whole)
    common = sum((part.high - part.low) * 4 for part in parts_of(TABLE, COMMON, whole))
    for tile, other in ((0, SECOND), (1, FIRST), (0, SECOND)):
        keep_tiles(module, TABLE, UNIT, half(tile), [other])
        assert all(digest(module, {}, piece) == digest(whole, {}, piece) for piece in TABLE.of_unit(UNIT))
        assert {piece for piece, _ in tiles_beside(module)} == {other}
        assert weight_bytes(module, ()) == common + (full - common) // 2 and weight_bytes(module) == full
    keep_tiles(module, TABLE, UNIT, Tiles(TILES), [])
    assert all(map(torch.equal, module.state_dict().values(), whole.state_dict().values()))
    keep_tiles(module, TABLE, UNIT, half(1), [])
    assert weight_bytes(module) == common + (full - common) // 2
    keep_tiles(module, TABLE, UNIT, None, [SECOND])
    assert weight_bytes(module, ()) == common and digest(module, {}, SECOND) == digest(whole, {}, SECOND)
    drop_shards(module, [COMMON])
    assert weight_bytes(module) == common


@pytest.mark.parametrize("tiles", [half(0), half(1), Tiles(TILES), None], ids=["first", "second", "all", "none"])
def test_pieces_arrive_in_a_released_unit_without_the_memory_of_others(tiles: Tiles | None) -> None:
    source, target = block("gpt2_untied"), block("gpt2_untied")
    moments, arrived = Moments(), Moments()
    give_gradients(1, source)
    UnitOptimizer(OptimizerSection(), [(UNIT, source)], moments, TABLE).step(0.1)
    release_unit(target)
    came = [SECOND, COMMON]
    for piece in came:
        import_piece(TABLE, piece, target, arrived, unpack(pack(export_piece(TABLE, piece, source, moments))))
    sizes = {piece: sum((part.high - part.low) * 4 for part in parts_of(TABLE, piece, source)) for piece in came}
    assert weight_bytes(target) == sum(sizes.values())
    keep_tiles(target, TABLE, UNIT, tiles, came)
    assert [digest(target, arrived, piece) for piece in came] == [digest(source, moments, piece) for piece in came]
    take_whole(target)
    assert not tiles_beside(target) and weight_bytes(target) == weight_bytes(source)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("section", [OptimizerSection(), OptimizerSection(name="sgd")], ids=lambda one: one.name)
def test_a_tile_is_updated_to_the_same_bits_wherever_it_is(section: OptimizerSection, dtype: torch.dtype) -> None:
    """In a module with all tiles, in one with this tile alone, and beside one, from the gradients that a buddy receives."""
    whole = block("gpt2_untied", dtype)
    alone, beside = copy.deepcopy(whole), copy.deepcopy(whole)
    keep_tiles(alone, TABLE, UNIT, half(1), [])
    keep_tiles(beside, TABLE, UNIT, half(0), [SECOND])
    moments = (Moments(), Moments(), Moments())
    for seed in range(3):
        give_gradients(seed, whole)
        for name, parameter in alone.named_parameters():
            gradient, layer = whole.get_parameter(name).grad, cut_layers(alone).get(name)
            parameter.grad = gradient if layer is None else layer.cut.tile(gradient, TILES, 1).clone()
            beside.get_parameter(name).requires_grad_(True)
        given = {(SECOND, part.name): part.of(whole, whole.get_parameter(part.name).grad).reshape(-1).clone()
                 for part in parts_of(TABLE, SECOND, whole)}  # fmt: skip
        UnitOptimizer(section, [(UNIT, whole)], moments[0], TABLE).step(0.1)
        UnitOptimizer(section, [(UNIT, alone)], moments[1], TABLE, [COMMON, SECOND]).step(0.1)
        UnitOptimizer(section, [(UNIT, beside)], moments[2], TABLE, [SECOND]).step(0.1, given)
    assert digest(alone, moments[1], COMMON) == digest(whole, moments[0], COMMON)
    assert {digest(alone, moments[1], SECOND), digest(beside, moments[2], SECOND)} == {digest(whole, moments[0], SECOND)}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_group_gathers_a_frozen_blocks_tiles_and_overwrites_no_state(family: str) -> None:
    whole = block(family)

    def member(group: object) -> tuple[list[torch.Tensor], bytes]:
        module, other = copy.deepcopy(whole), (SECOND, FIRST)[group.index]
        keep_tiles(module, TABLE, UNIT, half(group.index), [])
        keep_tiles(module, TABLE, UNIT, Tiles(TILES), [])
        gather_tiles(group, module, TABLE, UNIT, [COMMON, (FIRST, SECOND)[group.index]])
        found = [tensor.clone() for tensor in module.state_dict().values()]
        with torch.no_grad():
            for part in parts_of(TABLE, other, module):
                part.of(module, module.get_parameter(part.name)).fill_(5.0)
        kept = digest(module, {}, other)
        gather_tiles(group, module, TABLE, UNIT, TABLE.of_unit(UNIT))
        assert digest(module, {}, other) == kept, "a buddy's copy is state"
        return found, kept

    for found, kept in in_group(TILES, member):
        assert all(map(torch.equal, found, whole.state_dict().values())) and kept != digest(whole, {}, FIRST)
