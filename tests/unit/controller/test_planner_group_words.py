"""What the planner says of groups: it counts groups where it planned groups, and names the degrees that may be raised."""

from typing import Any

import pytest

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.tile_grid import TileGrid
from frostline_controller.planner.inputs import NothingFits
from frostline_controller.planner.search import make_plan
from tests.unit.controller.planner_cases import inputs, members
from tests.unit.controller.test_planner_groups import FAST


def wanting(tp_degree: int | None = 2, **fields: Any) -> PlacementSection:
    return PlacementSection(workers=16, tp_degree=tp_degree, **fields)


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        ({}, "raise placement.tp_degree (2; tiles allow 4), raise placement.tp_depth (1; tiles allow 2), "),
        ({"tensor_rows": "split"}, ""),
        ({"tp_degree": None}, "raise placement.tp_depth (1; tiles allow 2), "),
    ],
    ids=["pinned", "row tiles", "open"],
)
def test_a_refusal_counts_groups_and_names_larger_ones_that_tiles_allow(asked: dict[str, Any], remedy: str) -> None:
    """Left open, a degree has been tried, and the words are those of the smallest groups: single workers."""
    crew = members(4, per_node=4, memory_bytes=1000)
    case = inputs(8, crew, placement=wanting(**asked), tensor_tiles=TileGrid(4, 2), row_tiles=2)
    with pytest.raises(NothingFits) as refused:
        make_plan(case)
    crowd = "4 workers" if asked.get("tp_degree", 2) is None else "2 groups of 2 workers"
    assert str(refused.value).startswith(f"no placement of {crowd} fits their memory: the leanest needs")
    assert f"raise placement.workers, {remedy}lower training.micro_batch_size" in str(refused.value)


@pytest.mark.parametrize(
    ("placement", "words"),
    [
        (wanting(objective="cost"), "fewest groups of 2 workers ("),
        (wanting(pp_degree=4), "pp 4 -> 2: 4 groups of 2 workers and 2 trainable units allow no more"),
        (wanting(dp_degree=4), "dp 4 -> 2: 4 groups of 2 workers at pp 1 and 2 leaves allow no more"),
    ],
    ids=["cost", "pp", "dp"],
)
def test_a_reason_counts_groups(placement: PlacementSection, words: str) -> None:
    crew = members(8, per_node=4)
    case = inputs(2, crew, placement=placement, tensor_tiles=TileGrid(2), reduction_leaves=2, near_link=FAST)
    assert words in make_plan(case).reason
