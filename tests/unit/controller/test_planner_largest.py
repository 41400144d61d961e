"""The largest model that each family of shapes has room for: as many blocks as make_plan takes, and not one more."""

from dataclasses import replace

import pytest

from frostline_contract.job.cluster import PlacementSection
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.tensor.largest import FAMILIES, Room, largest_models
from frostline_controller.planner.tensor.member_costs import grouped
from tests.unit.controller.planner_cases import inputs, members, unit

ENDS = unit(1e-3, 20_000, 3_000, 100)
BLOCK = unit(1e-3, 100_000, 50_000, 100)


def deep(blocks: int, tied: bool = False, **fields: object) -> PlanInputs:
    crew = members(4, per_node=4, memory_bytes=4_000_000)
    return inputs((ENDS, *(BLOCK,) * blocks, ENDS), crew, reduction_leaves=4, num_microbatches=4, tied=tied, **fields)


def fits(room: Room, blocks: int, tied: bool, has_pipeline: bool, has_replicas: bool) -> bool:
    """Return whether the planner finds a plan for so many blocks with the room's way of sharing."""
    pins = {} if has_pipeline else {"pp_degree": 1}
    pins |= {} if has_replicas else {"dp_degree": 1}
    case = deep(blocks, tied, placement=PlacementSection(**pins))
    try:
        make_plan(grouped(case, room.sharing))
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
    assert plain < rooms["tensor columns"]
    assert plain < rooms["pipeline"] <= rooms["all that runs"] <= rooms["all together"] == max(rooms.values())


def test_without_a_memory_there_is_no_largest() -> None:
    assert largest_models(replace(deep(2), members=members(4))) == ()
