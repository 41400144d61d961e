"""Plans whose workers cut the hidden width too (`placement.tp_depth`): which columns and depth are taken, and where they lie."""

import random
from dataclasses import replace
from functools import partial

import pytest

from frostline_contract.job import parse_job
from frostline_contract.job.cluster import PlacementSection
from frostline_contract.plan import Placement
from frostline_contract.statistics import LinkProfile
from frostline_contract.tile_grid import TileGrid
from frostline_controller.planner.adapter import Choice, Situation, choose_placement
from frostline_controller.planner.describe import describe
from frostline_controller.planner.in_groups import group_axes
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.shared_as_needed import settled
from frostline_controller.planner.simulated_step import placement_cost
from frostline_controller.planner.tensor.built import in_groups_as_built
from frostline_controller.planner.tensor.groups import as_one, form_groups, ranks_at_home
from frostline_controller.planner.tensor.traffic import Axes
from frostline_controller.planner.timed_step import timed_step
from frostline_controller.run.pinned import PinnedShape
from tests.unit.controller.planner_cases import inputs, members, random_units, unit
from tests.unit.controller.test_planner_groups import FAST, LONG_BLOCK
from tests.unit.controller.test_planner_sharing_choice import least_of_shapes, seconds_chosen
from tests.unit.controller.test_planner_tensor import NEAR
from tests.unit.controller.test_planning import worker

GRID = TileGrid(inner=2, hidden=4)


def wanting(columns: int | None, depth: int | None, **fields: object) -> PlacementSection:
    return PlacementSection(**({"workers": 32, "tp_degree": columns, "tp_depth": depth, "hysteresis": 0.05} | fields))


def axes_of(placement: Placement) -> tuple[int, int]:
    return placement.shape.tp_columns, placement.shape.tp_depth


# ---- pinned


@pytest.mark.parametrize(("columns", "depth"), [(1, 2), (2, 2), (2, 4)])
def test_a_group_of_columns_and_depth_is_planned_with_the_costs_of_its_members(columns: int, depth: int) -> None:
    asked = inputs(
        8, members(8, per_node=8), placement=wanting(columns, depth), tensor_tiles=GRID, near_link=FAST, parallel_slots=8
    )
    planned, axes = make_plan(asked), Axes(columns, depth)
    member = in_groups_as_built(asked, axes, at_home=axes.size)
    one = make_plan(replace(member, placement=wanting(1, 1), members=asked.members[:: axes.size]))
    tensor = {"tp_columns": columns, "tp_depth": depth} if columns > 1 else {"tp_depth": depth}
    assert planned.placement.degrees == one.placement.degrees | tensor
    assert planned.cost == one.cost
    assert placement_cost(planned.placement, asked).total_seconds == pytest.approx(planned.cost.total_seconds, rel=1e-12)
    assert f"placement.tp_degree {columns} and tp_depth {depth}" in planned.reason
    reported = describe(planned, asked)
    assert f"tp_depth {depth} x " in reported and f"{axes.size} workers share each stage tile by tile" in reported


def test_the_picture_of_a_step_has_the_seconds_of_a_groups_members() -> None:
    asked = inputs(8, members(8, per_node=4), placement=wanting(2, 2, pp_degree=2), tensor_tiles=GRID, near_link=FAST)
    planned = make_plan(asked)
    member = replace(
        in_groups_as_built(asked, Axes(2, 2), at_home=4), members=asked.members[::4], placement=wanting(1, 1, pp_degree=2)
    )
    one = make_plan(member).placement
    spans = [[(each.start, each.end) for each in timed_step(*way)] for way in ((planned.placement, asked), (one, member))]
    assert spans[0] == spans[1]


def test_other_shapes_beside_a_plan_have_its_columns_and_depth() -> None:
    units = random_units(random.Random(2), 8)
    asked = inputs(units, members(24, per_node=4), placement=wanting(2, 2), tensor_tiles=GRID, reduction_leaves=4)
    planned = make_plan(asked)
    assert [option.shape.degrees for option in planned.alternatives] == [{"dp": 2, "pp": 2, "tp_columns": 2, "tp_depth": 2}]
    lines = describe(planned, asked).splitlines()
    at = next(place for place, line in enumerate(lines) if line.startswith("other shapes"))
    assert lines[at + 1][: lines[at].index("workers")].rstrip() == "tp_depth 2 x tp_columns 2 x pp 2 x dp 2, 1f1b"


@pytest.mark.parametrize(
    ("workers", "pins", "expected", "words"),
    [
        (8, {}, Axes(2, 4), "placement.tp_degree 2 and tp_depth 4"),
        (7, {}, Axes(2, 2), "tp 2 x 4 -> 2 x 2: 7 workers at pp 1 and dp 1 allow no more"),
        (3, {}, Axes(2), "tp 2 x 4 -> 2: 3 workers at pp 1 and dp 1 allow no more"),
        (1, {}, Axes(), "tp 2 x 4 -> 1: 1 workers at pp 1 and dp 1 allow no more"),
        (8, {"pp_degree": 2}, Axes(2, 2), "tp 2 x 4 -> 2 x 2: 8 workers at pp 2 and dp 1 allow no more"),
        (8, {"pp_degree": 2, "dp_degree": 2}, Axes(2), "tp 2 x 4 -> 2: 8 workers at pp 2 and dp 2 allow no more"),
        (5, {"dp_degree": 4}, Axes(), "tp 2 x 4 -> 1: 5 workers at pp 1 and dp 4 allow no more"),
    ],
)
def test_the_depth_is_halved_before_the_columns(workers: int, pins: dict[str, int], expected: Axes, words: str) -> None:
    asked = inputs(8, members(workers, per_node=4), placement=wanting(2, 4, **pins), tensor_tiles=GRID)
    assert group_axes(asked) == (expected, words)
    planned = make_plan(asked)
    assert axes_of(planned.placement) == (expected.columns, expected.depth)
    assert words in planned.reason
    assert len(planned.placement.workers) + len(planned.spares) == workers


def test_a_group_over_two_nodes_has_its_levels_in_one_of_them_and_stays() -> None:
    """Two columns of two levels on nodes of three: each node has a column, and the levels' sums do not leave it."""
    crew = members(6, per_node=3)
    fields = {"placement": wanting(2, 2, pp_degree=1), "tensor_tiles": GRID, "near_link": FAST}
    asked = inputs(8, crew, **fields)
    planned = make_plan(asked)
    node = {member.worker_id: member.failure_domain for member in crew}
    assert [node[one] for one in planned.placement.workers] == ["node-0", "node-0", "node-1", "node-1"]
    at_home = [in_groups_as_built(asked, Axes(2, 2), at_home=count).units[2].forward_seconds for count in (4, 2, 1)]
    group = replace(in_groups_as_built(asked, Axes(2, 2), at_home=2), placement=wanting(1, 1, pp_degree=1), members=crew[:1])
    assert at_home[0] < at_home[1] < at_home[2] and planned.cost == make_plan(group).cost
    assert placement_cost(planned.placement, asked).total_seconds == pytest.approx(planned.cost.total_seconds, rel=1e-12)
    places = planned.placement.global_ranks
    placed = tuple(replace(member, global_rank=places.get(member.worker_id, -1)) for member in crew)
    again = make_plan(inputs(8, placed, current=planned.placement, **fields))
    assert again.placement.workers == planned.placement.workers and again.moved_bytes == 0


# ---- the planner's choice


def open_axes(seed: int, hysteresis: float) -> PlanInputs:
    """Return a random case with columns, depth and the sharing of state left open; memory is scarce, or enough, or plenty."""
    source = random.Random(seed)
    units = [unit(1e-3, 10**5), *random_units(source, 6)[1:], unit(1e-3, 10**5)]
    room = source.choice([1.6, 2.0, 3.0, 5.0]) * sum(one.parameter_bytes for one in units)
    wanted = wanting(
        None, None, shard=source.choice(["none", "auto"]), schedule="1f1b", pp_degree=source.choice([None, 1]),
        worker_memory_bytes=round(room) + 10**7, hysteresis=hysteresis,
    )  # fmt: skip
    return inputs(
        units,
        members(source.choice([2, 4, 8]), per_node=source.choice([1, 2, 4])),
        freeze_point=source.choice([0, 1]),
        link=LinkProfile(reduce_bandwidth_bytes_per_second=source.choice([2e8, 5e9])),
        near_link=source.choice([None, NEAR]),
        num_microbatches=4,
        reduction_leaves=source.choice([1, 2, 4]),
        state_ranges=4,
        tensor_tiles=source.choice([TileGrid(1, 4), TileGrid(2, 2), TileGrid(4, 2)]),
        placement=wanted,
    )


def least_of_all(case: PlanInputs) -> tuple[float, str]:
    """Return the least seconds a sample over (pp, dp, columns, depth, shard), and the shard: "use" where only that fits."""
    nodes = {member.failure_domain for member in case.members}
    per_node = max(sum(member.failure_domain == node for member in case.members) for node in nodes)
    grid = case.tensor_tiles
    every = [Axes(c, d) for c in (1, 2, 4) for d in (1, 2, 4) if c <= min(grid.inner, per_node) and d <= grid.hidden]
    allowed = [axes for axes in every if axes.size <= len(case.members)]
    ways = (("none", "step"), ("use",)) if case.placement.shard == "auto" else (("none",),)
    for shards in ways:
        found = [(least_of_shapes(pinned(case, axes, shard)), shard) for axes in allowed for shard in shards]
        if min(found)[0] < float("inf"):
            return min(found)
    return float("inf"), ""


def pinned(case: PlanInputs, axes: Axes, shard: str) -> PlanInputs:
    """Return the case with these groups as its workers."""
    groups = form_groups(case.members, axes.size)
    section = case.placement.model_copy(update={"tp_degree": 1, "tp_depth": 1, "shard": shard})
    member = in_groups_as_built(replace(case, placement=section), axes, ranks_at_home(groups))
    return replace(member, members=tuple(map(as_one, groups)))


@pytest.mark.parametrize("seed", range(48))
def test_columns_depth_and_shares_that_are_open_at_once_equal_brute_force(seed: int) -> None:
    """Without hysteresis the choice is the best of all; with it, it is as near as the rule allows."""
    least, way = least_of_all(open_axes(seed, 0.0))
    seconds, taken, near = seconds_chosen(partial(open_axes, seed))
    assert (seconds, taken) == (pytest.approx(least, rel=1e-9), way)
    assert least * (1 - 1e-9) <= near <= least / 0.9**2


def test_small_cases_of_the_search_take_a_depth_now_and_then() -> None:
    """Else the search above would show nothing of it."""
    taken = list[tuple[int, int]]()
    for seed in range(48):
        try:
            taken.append(axes_of(make_plan(open_axes(seed, 0.0)).placement))
        except NothingFits:
            continue
    assert sum(depth > 1 for _, depth in taken) >= 5 and sum(columns > 1 < depth for columns, depth in taken) >= 2
    assert sum(depth == 1 for _, depth in taken) >= 5


HEAVY = (unit(0.001, 1000), unit(0.1, 40_000_000, 1_000_000), unit(0.001, 1000))
"""One block of 40 M of weights, 80 M of moments, and gradients: no pipeline cuts it."""


def heavy(memory_bytes: int, **fields: object) -> PlanInputs:
    crew = members(8, per_node=8, memory_bytes=memory_bytes)
    return inputs(HEAVY, crew, **({"reduction_leaves": 1, "near_link": FAST, "tensor_tiles": TileGrid(2, 4)} | fields))


@pytest.mark.parametrize(("memory_bytes", "expected"), [(170_000_000, (1, 1)), (90_000_000, (2, 1)), (50_000_000, (2, 2))])
def test_a_depth_is_taken_where_columns_alone_do_not_fit_the_memory(memory_bytes: int, expected: tuple[int, int]) -> None:
    """Two key-value heads allow two columns; links are so slow that no group saves time."""
    slow = FAST.model_copy(update={"reduce_latency_seconds": 1.0})
    asked = heavy(memory_bytes, placement=wanting(None, None), near_link=slow)
    found = make_plan(asked)
    assert axes_of(found.placement) == expected
    assert ("groups of fewer columns or less depth do not fit" in found.reason) == (expected[1] > 1)
    if expected[1] > 1:
        for columns in (1, 2):
            with pytest.raises(NothingFits):
                make_plan(replace(asked, placement=wanting(columns, 1)))


def test_a_depth_is_taken_where_it_is_quicker_by_more_than_the_hysteresis() -> None:
    asked = inputs(LONG_BLOCK, members(4, per_node=4), reduction_leaves=1, near_link=FAST, tensor_tiles=TileGrid(2, 4))
    found = make_plan(replace(asked, placement=wanting(None, None)))
    assert axes_of(found.placement) == (2, 2) and "x as fast as tp 2" in found.reason
    assert "tp 2 x 2 of placement.tp_degree and tp_depth null" in found.reason
    for placement, expected in (
        (wanting(None, 1), (2, 1)),
        (wanting(1, None), (1, 4)),
        (wanting(2, None), (2, 2)),
        (wanting(None, 2), (2, 2)),
        (wanting(None, None, hysteresis=0.9), (1, 1)),
        (wanting(None, None, objective="cost"), (1, 1)),
        (wanting(None, None, tensor_rows="split"), (1, 1)),
    ):
        assert axes_of(make_plan(replace(asked, placement=placement)).placement) == expected, placement
    assert axes_of(make_plan(replace(asked, placement=wanting(None, None), parallel_slots=2)).placement) == (2, 1)
    columns = replace(asked, placement=wanting(None, None), tensor_tiles=TileGrid(4, 4))
    assert axes_of(make_plan(columns).placement) == (4, 1), "of equal groups the one of less depth, unless it is much slower"


@pytest.mark.parametrize("field", ["initial_pp_degree", "pp_degree"])
def test_open_axes_leave_workers_for_the_pipeline_that_the_job_asks_for(field: str) -> None:
    """Groups would be quicker, and there would be one or two of them; later the depth is the planner's choice."""
    blocks = (unit(0.001), *[unit(0.1)] * 4, unit(0.001))
    asked = inputs(
        blocks, members(4, per_node=4), num_microbatches=2, reduction_leaves=1, near_link=FAST, tensor_tiles=TileGrid(4, 1)
    )
    planned = [make_plan(replace(asked, placement=wanting(*axes, **{field: 4}))) for axes in ((None, None), (None, 1), (2, 1))]
    assert [(one.placement.pp_degree, axes_of(one.placement)) for one in planned] == [(4, (1, 1))] * 3
    assert "tp 2 -> 1: 4 workers at pp 4 and dp 1 allow no more" in planned[2].reason
    later = replace(asked, placement=wanting(None, None, initial_pp_degree=4), current=planned[0].placement)
    assert axes_of(make_plan(later).placement) == (4, 1)


def test_columns_stay_within_a_node_and_a_depth_need_not() -> None:
    """One worker a node: no columns, and levels on four nodes where their links are quick enough."""
    asked = inputs(LONG_BLOCK, members(4, per_node=1), reduction_leaves=1, link=FAST, tensor_tiles=TileGrid(4, 4))
    assert axes_of(make_plan(replace(asked, placement=wanting(None, None))).placement) == (1, 4)
    slow = FAST.model_copy(update={"reduce_latency_seconds": 0.1})
    assert axes_of(make_plan(replace(asked, placement=wanting(None, None), link=slow)).placement) == (1, 1)


def test_what_is_left_open_is_without_groups_where_advice_compares_with_it() -> None:
    asked = inputs(8, 4, placement=wanting(None, None, shard="auto"), tensor_tiles=GRID)
    assert [settled(asked).placement.model_dump()[name] for name in ("tp_degree", "tp_depth", "shard")] == [1, 1, "none"]
    pinned_ones = replace(asked, placement=wanting(2, 4, shard="auto"))
    assert [settled(pinned_ones).placement.model_dump()[name] for name in ("tp_degree", "tp_depth", "shard")] == [2, 4, "none"]
    nothing_open = replace(asked, placement=wanting(2, 4))
    assert settled(nothing_open) is nothing_open


# ---- in a run


def chosen(workers: int, current: Placement | None = None, degrees: dict[str, int] | None = None, **fields: object) -> Choice:
    """Return the choice for a run of four blocks with so many workers; by default its job asks for one column of two levels."""
    job = parse_job({
        "model": {"family": "vit"}, "task": {"kind": "image_classification"}, "data": {"source": "digits"},
        "training": {"steps": 10, "batch_size": 32, "micro_batch_size": 4, "tensor_tiles": {"inner": 2, "hidden": 4}},
        "placement": {"workers": 8, "tp_depth": 2} | fields,
    })  # fmt: skip
    crew = tuple(worker(name, *(0.1,) * 6) for name in "abcdefgh"[:workers])
    pinned_shape = PinnedShape(degrees=degrees) if degrees else None
    return choose_placement(job, Situation(
        num_units=6, freeze_point=0, workers=crew, current=current, start={}, pinned=pinned_shape, steps_left=5,
        reshape_seconds=1e6, boundary_bytes_per_sample=64, uncacheable="no", cache_reachable=False, train_samples=320,
        parallel_slots=None,
    ))  # fmt: skip


def test_a_depth_that_fits_again_is_formed_whatever_it_costs() -> None:
    alone = chosen(1).placement
    assert axes_of(alone) == (1, 1)
    again = chosen(4, current=alone)
    assert axes_of(again.placement) == (1, 2) and again.pays and "fits again" in again.reason
    assert not chosen(4, current=again.placement).pays
    assert axes_of(chosen(4, tp_degree=2).placement) == (2, 2)


@pytest.mark.parametrize(
    "degrees",
    [{"pp": 1, "dp": 1, "tp_depth": 4}, {"pp": 1, "dp": 2, "tp_columns": 2, "tp_depth": 2}, {"pp": 2, "dp": 2}],
    ids=str,
)
def test_a_shape_by_command_has_the_depth_that_it_names_whatever_the_job_says(degrees: dict[str, int]) -> None:
    assert chosen(8, degrees=degrees).placement.degrees == degrees
    assert chosen(8, degrees=degrees, tp_depth=None).placement.degrees == degrees
