"""The costs of tensors that cross between the stages of groups: a share on the link, and a gather in the group."""

from dataclasses import replace

import pytest

from frostline_contract.tile_grid import TileGrid
from frostline_controller.planner.cache_costs import cache_seconds
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.simulated_step import placement_cost
from frostline_controller.planner.tensor.built import in_groups_as_built
from frostline_controller.planner.tensor.traffic import Axes
from tests.unit.controller.planner_cases import inputs, members
from tests.unit.controller.test_planner_groups import FAST, wanting

SLOW = FAST.model_copy(update={"latency_seconds": 1e-4, "bandwidth_bytes_per_second": 1e9})


@pytest.mark.parametrize("degree", [2, 4])
@pytest.mark.parametrize("at_home", [True, False])
def test_a_message_between_stages_costs_a_share_on_its_link_and_a_gather_in_the_group(degree: int, at_home: bool) -> None:
    between = SLOW.model_copy(update={"reduce_latency_seconds": 3e-4, "reduce_bandwidth_bytes_per_second": 5e8})
    case = inputs(6, 8, link=between, near_link=FAST, boundary_bytes_per_sample=1000)
    member = in_groups_as_built(case, Axes(degree), degree if at_home else 1)
    size, inside = case.units[1].output_bytes, FAST if at_home else between
    gathering = inside.reduce_latency_seconds + (degree - 1) / degree * size / inside.reduce_bandwidth_bytes_per_second
    for link in (between, FAST):
        found = member.for_messages(link)
        seconds = found.latency_seconds + size / found.bandwidth_bytes_per_second
        assert seconds == pytest.approx(link.latency_seconds + size / degree / link.bandwidth_bytes_per_second + gathering)
    assert (member.link, member.near_link) == (case.link, case.near_link), "lines of replicas are as before"
    assert cache_seconds(member) == cache_seconds(case), "the cache is no group's"


def test_groups_shorten_the_messages_of_a_pipeline_over_slow_links() -> None:
    asked = inputs(
        8, members(4, per_node=2), link=SLOW, near_link=FAST, placement=wanting(2, pp_degree=2), tensor_tiles=TileGrid(2)
    )
    planned = make_plan(asked)
    whole = make_plan(replace(asked, members=asked.members[::2], placement=wanting(1, pp_degree=2)))
    assert planned.placement.degrees == whole.placement.degrees | {"tp_columns": 2}
    message, shared = 1e-4 + 1e5 / 1e9, 1e-4 + 1e5 / 2 / 1e9 + 1e-6 + 1e5 / 2 / 1e11
    assert planned.cost.parts["p2p"] == pytest.approx(whole.cost.parts["p2p"] * shared / message)
    assert placement_cost(planned.placement, asked).parts["p2p"] == pytest.approx(planned.cost.parts["p2p"])
