"""The tiles that a unit's module holds, and those beside it: the same state and the same updates, in less memory."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from frostline_contract.job.training import OptimizerSection
from frostline_contract.pieces import Pieces
from frostline_contract.shape import ParallelShape
from frostline_contract.tile_grid import TileBox
from frostline_trainer.step.local_shards import drop_shards, join_unit, shard_unit, weight_bytes
from frostline_trainer.step.optimizer import Moments, UnitOptimizer
from frostline_trainer.step.packing import pack, unpack
from frostline_trainer.step.parts import flat, parts_of, write
from frostline_trainer.step.tile_state import exchanged_tiles, gather_tiles, keep_tiles, tiles_beside
from frostline_trainer.step.unit_state import export_piece, import_piece, release_unit, take_whole, unit_digest
from frostline_trainer.tensor.cut import Cut
from frostline_trainer.tensor.hidden import Hidden
from frostline_trainer.tensor.state import cut_layers
from frostline_trainer.tensor.tiles import Tiles
from frostline_trainer.transport.collectives import Group
from tests.unit.trainer.group_threads import in_group
from tests.unit.trainer.test_tile_pieces import SQUARE, TILES, UNIT, block, give_gradients, table_of, tiles_in

FAMILIES = ("gpt2_untied", "bert_classification")
COMMON, FIRST, SECOND = None, 0, 1


@dataclass(frozen=True)
class Shared:
    """A block whose tiles a group shares: the table of the run's pieces, and the group's shape. Members are named by place."""

    table: Pieces
    shape: ParallelShape

    @property
    def members(self) -> range:
        return range(self.shape.tp_degree)

    @property
    def all(self) -> Tiles:
        return Tiles(self.table.grid.inner, hidden=Hidden(self.table.grid.hidden))

    def block(self, family: str, dtype: torch.dtype = torch.float32) -> nn.Module:
        return block(family, dtype, self.table.grid)

    def tiles(self, member: int) -> Tiles:
        return tiles_in(TileBox(self.table.grid, *self.shape.tile_ranges(member, self.table.grid)))

    def pieces(self, *members: int | None) -> list[int]:
        """Return the block's pieces of these members' tiles, or of what no tile cuts."""
        wanted = {None} & set(members) | {tile for one in members if one is not None for tile in self.tiles(one).box.numbers}
        return [piece for piece in self.table.of_unit(UNIT) if self.table.tile_of(piece) in wanted]

    def digests(self, module: nn.Module, moments: Moments, *members: int | None) -> list[bytes]:
        return [unit_digest(export_piece(self.table, piece, module, moments)) for piece in self.pieces(*members)]


SHARED = pytest.mark.parametrize(
    "shared",
    [
        Shared(table_of(TILES), ParallelShape(1, 1, tp_columns=2)),
        Shared(table_of(TILES, 3), ParallelShape(1, 1, tp_columns=2)),
        Shared(table_of(SQUARE), ParallelShape(1, 1, tp_depth=2)),
        Shared(table_of(SQUARE, 3), ParallelShape(1, 1, tp_columns=2, tp_depth=2)),
    ],
    ids=["columns", "columns, ranges", "levels", "columns and levels, ranges"],
)


@SHARED
@pytest.mark.parametrize("family", FAMILIES)
def test_a_member_holds_its_tiles_and_gives_them_back(family: str, shared: Shared) -> None:
    """What the module does not hold stays beside it where it is needed, and is dropped where it is not."""
    table, whole, module = shared.table, shared.block(family), shared.block(family)
    full, every = weight_bytes(whole), (COMMON, *shared.members)
    common = sum((part.high - part.low) * 4 for piece in shared.pieces(COMMON) for part in parts_of(table, piece, whole))
    share = (full - common) // len(shared.members)
    for member in (*shared.members, FIRST):
        others = shared.pieces(*(one for one in shared.members if one != member))
        keep_tiles(module, table, UNIT, shared.tiles(member), others)
        assert shared.digests(module, {}, *every) == shared.digests(whole, {}, *every)
        assert {piece for piece, _ in tiles_beside(module)} == set(others)
        assert weight_bytes(module, ()) == common + share and weight_bytes(module) == full
    keep_tiles(module, table, UNIT, shared.all, [])
    assert all(map(torch.equal, module.state_dict().values(), whole.state_dict().values()))
    keep_tiles(module, table, UNIT, shared.tiles(SECOND), [])
    assert weight_bytes(module) == common + share
    last = shared.pieces(SECOND)[-1:]
    keep_tiles(module, table, UNIT, None, last)
    assert weight_bytes(module, ()) == common
    assert unit_digest(export_piece(table, last[0], module, {})) == shared.digests(whole, {}, SECOND)[-1]
    drop_shards(module, shared.pieces(COMMON))
    assert weight_bytes(module) == common


@pytest.mark.parametrize("family", FAMILIES)
def test_a_member_of_a_group_of_columns_becomes_one_of_levels_and_back(family: str) -> None:
    """Of two tiles it keeps one in the module, the other goes beside it, and a third one comes from there."""
    table = table_of(SQUARE, 3)
    columns, levels = Shared(table, ParallelShape(1, 1, tp_columns=2)), Shared(table, ParallelShape(1, 1, tp_depth=2))
    whole, module = columns.block(family), columns.block(family)
    keep_tiles(module, table, UNIT, columns.tiles(FIRST), [])
    leaving, coming = (
        sorted({*one.pieces(FIRST)} - {*other.pieces(FIRST)}) for one, other in ((columns, levels), (levels, columns))
    )
    for piece in coming:
        import_piece(table, piece, module, Moments(), export_piece(table, piece, whole, Moments()))
    keep_tiles(module, table, UNIT, levels.tiles(FIRST), leaving)
    assert {piece for piece, _ in tiles_beside(module)} == set(leaving)
    for shared in (levels, columns):
        assert shared.digests(module, {}, COMMON, FIRST) == shared.digests(whole, {}, COMMON, FIRST)
    keep_tiles(module, table, UNIT, columns.tiles(FIRST), [])
    assert columns.digests(module, {}, COMMON, FIRST) == columns.digests(whole, {}, COMMON, FIRST) and not tiles_beside(module)


@SHARED
@pytest.mark.parametrize("held", ["first", "second", "all", "none"])
def test_pieces_arrive_in_a_released_unit_without_the_memory_of_others(held: str, shared: Shared) -> None:
    tiles = {"first": shared.tiles(FIRST), "second": shared.tiles(SECOND), "all": shared.all, "none": None}[held]
    table, source, target = shared.table, shared.block("gpt2_untied"), shared.block("gpt2_untied")
    moments, arrived = Moments(), Moments()
    give_gradients(1, source)
    UnitOptimizer(OptimizerSection(), [(UNIT, source)], moments, table).step(0.1)
    release_unit(target)
    came = [*reversed(shared.pieces(SECOND)), *shared.pieces(COMMON)]
    for piece in came:
        import_piece(table, piece, target, arrived, unpack(pack(export_piece(table, piece, source, moments))))
    size = sum((part.high - part.low) * 4 for piece in came for part in parts_of(table, piece, source))
    assert weight_bytes(target) == size
    keep_tiles(target, table, UNIT, tiles, came)
    wanted = shared.digests(source, moments, COMMON, SECOND)
    assert shared.digests(target, arrived, COMMON, SECOND) == wanted
    shard_unit(target, table, came)
    assert weight_bytes(target) == size and shared.digests(target, arrived, COMMON, SECOND) == wanted
    join_unit(target, table)
    keep_tiles(target, table, UNIT, tiles, came)
    assert shared.digests(target, arrived, COMMON, SECOND) == wanted
    take_whole(target)
    assert not tiles_beside(target) and weight_bytes(target) == weight_bytes(source)


def share_of(gradient: torch.Tensor, one: Cut, box: TileBox) -> torch.Tensor:
    """Return the gradient of some tiles of a parameter, from that of the whole."""
    every = box.grid.all
    return one.put_together(gradient, every, box, {tile: one.view(gradient, every, tile) for tile in box.numbers})


@SHARED
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("section", [OptimizerSection(), OptimizerSection(name="sgd")], ids=lambda one: one.name)
def test_a_tile_is_updated_to_the_same_bits_wherever_it_is(section: OptimizerSection, dtype: torch.dtype, shared: Shared) -> None:
    """In a module with all tiles, in one with this tile alone, in local shards, and beside a module, from the gradients that a
    buddy receives."""
    table, whole = shared.table, shared.block("gpt2_untied", dtype)
    alone, beside, sharded = (copy.deepcopy(whole) for _ in range(3))
    keep_tiles(alone, table, UNIT, shared.tiles(SECOND), [])
    keep_tiles(beside, table, UNIT, shared.tiles(FIRST), shared.pieces(SECOND))
    keep_tiles(sharded, table, UNIT, shared.tiles(SECOND), [])
    shard_unit(sharded, table, shared.pieces(COMMON, SECOND))
    moments = [Moments() for _ in range(4)]
    for seed in range(3):
        give_gradients(seed, whole)
        for name, parameter in alone.named_parameters():
            gradient, layer = whole.get_parameter(name).grad, cut_layers(alone).get(name)
            parameter.grad = gradient if layer is None else share_of(gradient, layer.cut, shared.tiles(SECOND).box)
            beside.get_parameter(name).requires_grad_(True)
            sharded.get_parameter(name).requires_grad_(True)
        given = {(piece, part.name): flat(part.of(whole, whole.get_parameter(part.name).grad)).clone()
                 for piece in shared.pieces(COMMON, SECOND) for part in parts_of(table, piece, whole)}  # fmt: skip
        UnitOptimizer(section, [(UNIT, whole)], moments[0], table).step(0.1)
        UnitOptimizer(section, [(UNIT, alone)], moments[1], table, shared.pieces(COMMON, SECOND)).step(0.1)
        UnitOptimizer(section, [(UNIT, beside)], moments[2], table, shared.pieces(SECOND)).step(0.1, given)
        UnitOptimizer(section, [(UNIT, sharded)], moments[3], table, shared.pieces(COMMON, SECOND)).step(0.1, given)
    wanted = shared.digests(whole, moments[0], COMMON, SECOND)
    assert shared.digests(alone, moments[1], COMMON, SECOND) == shared.digests(sharded, moments[3], COMMON, SECOND) == wanted
    assert shared.digests(beside, moments[2], SECOND) == wanted[table.ranges :]


@SHARED
@pytest.mark.parametrize("family", FAMILIES)
def test_a_group_gathers_a_frozen_blocks_tiles_and_overwrites_no_state(family: str, shared: Shared) -> None:
    table, shape, whole = shared.table, shared.shape, shared.block(family)

    def member(group: Group) -> tuple[list[torch.Tensor], list[bytes]]:
        module, own, other = copy.deepcopy(whole), group.index, (group.index + 1) % group.size
        keep_tiles(module, table, UNIT, shared.tiles(own), [])
        keep_tiles(module, table, UNIT, shared.all, [])
        gather_tiles(group, shape, module, table, UNIT, shared.pieces(COMMON, own))
        found = [tensor.clone() for tensor in module.state_dict().values()]
        with torch.no_grad():
            for piece in shared.pieces(other):
                for part in parts_of(table, piece, module):
                    write(part.of(module, module.get_parameter(part.name)), torch.full((part.high - part.low,), 5.0))
        kept = shared.digests(module, {}, other)
        gather_tiles(group, shape, module, table, UNIT, table.of_unit(UNIT))
        assert shared.digests(module, {}, other) == kept, "a buddy's copy is state"
        return found, kept

    for place, (found, kept) in enumerate(in_group(len(shared.members), member)):
        assert all(map(torch.equal, found, whole.state_dict().values()))
        assert kept != shared.digests(whole, {}, (place + 1) % len(shared.members))


@SHARED
@pytest.mark.parametrize("family", FAMILIES)
def test_a_module_has_another_members_tiles_for_a_while_and_then_its_own_in_place(family: str, shared: Shared) -> None:
    whole = shared.block(family)

    def has(module: nn.Module, tiles: TileBox) -> bool:
        layers = cut_layers(module)
        expected = {name: share_of(whole.get_parameter(name).detach(), layer.cut, tiles) for name, layer in layers.items()}
        return all(layer.kept.box == tiles and torch.equal(module.get_parameter(name), expected[name])
                   for name, layer in layers.items())  # fmt: skip

    def member(group: Group) -> None:
        module, own = copy.deepcopy(whole), shared.tiles(group.index)
        keep_tiles(module, shared.table, UNIT, own, [])
        addresses = [parameter.data_ptr() for parameter in module.parameters()]
        for ahead in shared.members:
            other = shared.tiles((group.index + ahead) % group.size)
            with exchanged_tiles(group, [module], other, ahead):
                assert has(module, other.box) and {layer.tiles.box for layer in cut_layers(module).values()} == {other.box}
            assert has(module, own.box) and [parameter.data_ptr() for parameter in module.parameters()] == addresses

    assert in_group(len(shared.members), member) == [None] * len(shared.members)
