"""Plans of groups whose members divide a micro-batch's samples (`placement.tensor_rows`)."""

from dataclasses import replace

from frostline_controller.planner.describe import describe
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.simulated_step import placement_cost
from frostline_controller.planner.tensor.built import in_groups_as_built
from frostline_controller.planner.tensor.traffic import Axes
from tests.unit.controller.planner_cases import members
from tests.unit.controller.test_planner_groups import FAST, LONG_BLOCK, open_degree, sharing_state


def test_members_that_divide_samples_keep_a_part_of_activations_and_gather_no_message() -> None:
    """Of 10 of 34 bytes of the hidden width, 4 are inputs of column layers, which stay whole on each member."""
    asked = sharing_state(2, "none")
    split = replace(asked, placement=asked.placement.model_copy(update={"tensor_rows": "split"}), row_tiles=2)
    plans = {way: make_plan(one) for way, one in (("whole", asked), ("split", split))}
    assert plans["split"].placement.splits_rows and not plans["whole"].placement.splits_rows
    saved = 2 * (round(8_000_000 * (10 / 34 + 12 / 34)) - round(8_000_000 * (4 / 34 + 3 / 34 + 12 / 34)))
    assert plans["whole"].cost.peak_bytes - plans["split"].cost.peak_bytes == saved, "of the two blocks"
    assert placement_cost(plans["split"].placement, asked).peak_bytes == plans["split"].cost.peak_bytes
    whole, divided = (in_groups_as_built(one, Axes(2), at_home=2) for one in (asked, split))
    assert divided.messages.sent == whole.messages.sent == 0.5
    assert divided.messages.over(FAST).latency_seconds == FAST.latency_seconds < whole.messages.over(FAST).latency_seconds
    assert "each has its part of a micro-batch's samples" in describe(plans["split"], split)


def test_rows_that_are_left_open_are_split_wherever_each_member_can_have_a_part() -> None:
    """The split plan takes less memory and no more time, so nothing has to be weighed."""
    asked = sharing_state(2, "none")
    open_, whole, split = (asked.placement.model_copy(update={"tensor_rows": way}) for way in ("auto", "whole", "split"))
    left = {tiles: make_plan(replace(asked, placement=open_, row_tiles=tiles)) for tiles in (1, 2)}
    assert [one.placement.tensor_rows for one in left.values()] == ["whole", "split"]
    pinned = [make_plan(replace(asked, placement=way, row_tiles=2)) for way in (whole, split)]
    assert left[2].cost == pinned[1].cost and left[1].cost.peak_bytes == pinned[0].cost.peak_bytes
    assert pinned[1].cost.peak_bytes < pinned[0].cost.peak_bytes
    assert pinned[1].cost.total_seconds <= pinned[0].cost.total_seconds
    alone = make_plan(replace(sharing_state(1, "none"), placement=open_.model_copy(update={"tp_degree": 1}), row_tiles=2))
    assert alone.placement.tensor_rows == "whole"


def test_a_degree_that_is_left_open_is_no_larger_than_row_tiles_that_are_divided() -> None:
    asked = open_degree(LONG_BLOCK, members(4, per_node=4), reduction_leaves=1, row_tiles=2)
    split = replace(asked, placement=asked.placement.model_copy(update={"tensor_rows": "split"}))
    assert [make_plan(one).placement.shape.tp_degree for one in (asked, split)] == [4, 2]
