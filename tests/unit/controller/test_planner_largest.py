"""The largest model that each family of shapes has room for: as many blocks as make_plan takes, and not one more."""

from dataclasses import replace

import pytest

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.tile_grid import TileGrid
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.tensor.built import as_groups
from frostline_controller.planner.tensor.largest import FAMILIES, Room, largest_models
from frostline_controller.planner.tensor.traffic import Axes
from tests.unit.controller.planner_cases import inputs, members, unit

ENDS = unit(1e-3, 20_000, 3_000, 100)
BLOCK = unit(1e-3, 100_000, 50_000, 100)


def deep(blocks: int, tied: bool = False, **fields: object) -> PlanInputs:
    numerics = {"reduction_leaves": 4, "num_microbatches": 4, "members": members(4, per_node=4, memory_bytes=4_000_000)}
    return inputs((ENDS, *(BLOCK,) * blocks, ENDS), tied=tied, **(numerics | fields))


def fits(room: Room, blocks: int, tied: bool, has_pipeline: bool, has_replicas: bool) -> bool:
    """Return whether the planner finds a plan for so many blocks with the room's way of sharing."""
    pins = {} if has_pipeline else {"pp_degree": 1}
    pins |= {} if has_replicas else {"dp_degree": 1}
    case = deep(blocks, tied, placement=PlacementSection(**pins))
    try:
        make_plan(as_groups(case, room.sharing))
    except NothingFits:
        return False
    return True


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("place", range(len(FAMILIES)), ids=lambda place: FAMILIES[place].name)
def test_the_planner_takes_as_many_blocks_and_not_one_more(place: int, tied: bool) -> None:
    family, room = FAMILIES[place], largest_models(deep(2, tied))[place]
    assert room.blocks > 0 and room.parameter_bytes == 40_000 + 100_000 * room.blocks
    assert fits(room, room.blocks, tied, family.has_pipeline, family.has_replicas)
    assert not fits(room, room.blocks + 1, tied, family.has_pipeline, family.has_replicas)


def test_more_ways_have_more_room() -> None:
    rooms = {room.family: room.blocks for room in largest_models(deep(2))}
    plain, use = rooms["data parallel"], rooms["data parallel, shard use (ZeRO-3)"]
    assert plain < rooms["data parallel, shard step (ZeRO-1/2)"] < use
    assert plain < rooms["tensor columns"] <= rooms["tensor columns and depth"]
    assert plain < rooms["pipeline"] <= rooms["all together"] == max(rooms.values())


LONG, WIDE, SHORT = unit(1e-3, 10_000_000, 3_000, 100), unit(1e-3, 3_000_000, 60_000_000, 100), unit(1e-3, 10_000, 3_000, 100)
WIDE = WIDE.model_copy(update={"working_bytes": 8_000_000})
"""An embedding whose moments only replicas can divide, and a block whose activations only a group can."""


def wide(blocks: int, memory_bytes: int, **fields: object) -> PlanInputs:
    numerics = {"reduction_leaves": 8, "num_microbatches": 8, "state_ranges": 2, "tensor_tiles": TileGrid(4), "row_tiles": 4}
    crew = members(8, per_node=4, memory_bytes=memory_bytes)
    return inputs((LONG, *(WIDE,) * blocks, SHORT), crew, **(numerics | fields))


@pytest.mark.parametrize(("memory_bytes", "rows"), [(53_500_000, "whole"), (50_000_000, "split")])
def test_groups_whose_replicas_share_state_out_are_among_all_that_there_is(memory_bytes: int, rows: str) -> None:
    """As many blocks as a run's planner takes in that shape; with less memory not one."""
    rooms = {room.family: room for room in largest_models(wide(2, memory_bytes))}
    assert {name for name, room in rooms.items() if room.blocks > 0} == {"all together"}
    found = rooms["all together"]
    assert (found.sharing.axes, found.sharing.shard, found.degrees) == (Axes(2), "step", {"dp": 2, "pp": 2})
    assert found.sharing.rows_split == (rows == "split")
    wanted = PlacementSection(workers=8, tp_degree=2, shard="step", tensor_rows=rows, pp_degree=2, dp_degree=2)
    assert make_plan(wide(found.blocks, memory_bytes, placement=wanted)).placement.shape.tp_degree == 2
    with pytest.raises(NothingFits):
        make_plan(wide(found.blocks + 1, memory_bytes, placement=wanted))
    less = {room.family: room for room in largest_models(wide(2, 46_000_000))}
    assert less["all together"].blocks == 0


def test_a_depth_has_room_where_a_node_has_no_more_columns() -> None:
    """As many blocks as a run's planner takes with it, and not one more."""
    crew = members(4, per_node=2, memory_bytes=4_000_000)
    rooms = {room.family: room for room in largest_models(deep(2, members=crew))}
    columns, found = rooms["tensor columns"], rooms["tensor columns and depth"]
    assert (columns.sharing.axes, found.sharing.axes) == (Axes(2), Axes(2, 2)) and columns.blocks < found.blocks
    wanted = PlacementSection(tp_degree=2, tp_depth=2, pp_degree=1)
    more = {"members": crew, "placement": wanted, "tensor_tiles": TileGrid(2, 2)}
    assert make_plan(deep(found.blocks, **more)).placement.degrees == {"dp": 1, "pp": 1, "tp_columns": 2, "tp_depth": 2}
    with pytest.raises(NothingFits):
        make_plan(deep(found.blocks + 1, **more))


def test_without_a_memory_there_is_no_largest() -> None:
    assert largest_models(replace(deep(2), members=members(4))) == ()
