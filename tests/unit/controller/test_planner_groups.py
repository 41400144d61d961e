"""Plans whose workers share each stage tile by tile (`placement.tp_degree`)."""

from dataclasses import replace

import pytest

from frostline_contract.job import parse_job
from frostline_contract.job.cluster import PlacementSection
from frostline_contract.plan import Placement
from frostline_contract.statistics import LinkProfile, UnitProfile
from frostline_contract.tile_grid import TileGrid
from frostline_controller.planner.adapter import Choice, Situation, choose_placement
from frostline_controller.planner.describe import describe
from frostline_controller.planner.in_groups import group_axes
from frostline_controller.planner.inputs import MemberInfo, NothingFits, PlanInputs, replica_speeds
from frostline_controller.planner.leaves import gradient_buffers
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.simulated_step import placement_cost
from frostline_controller.planner.tensor.built import in_groups_as_built
from frostline_controller.planner.tensor.groups import as_one, form_groups, lie_at_home
from frostline_controller.planner.tensor.traffic import Axes
from frostline_controller.run.pinned import PinnedShape
from tests.unit.controller.planner_cases import inputs, members, unit
from tests.unit.controller.test_planning import worker

FAST = LinkProfile(
    latency_seconds=1e-6, bandwidth_bytes_per_second=1e11, reduce_latency_seconds=1e-6, reduce_bandwidth_bytes_per_second=1e11
)


def wanting(tp_degree: int, workers: int = 16, **pins: int) -> PlacementSection:
    return PlacementSection(workers=workers, tp_degree=tp_degree, **pins)


def domains_of_groups(found: PlanInputs, degree: int, workers: tuple[str, ...]) -> list[set[str]]:
    domain = {member.worker_id: member.failure_domain for member in found.members}
    return [{domain[worker] for worker in workers[first : first + degree]} for first in range(0, len(workers), degree)]


def test_a_group_lies_on_one_node_and_is_planned_with_the_costs_of_its_members() -> None:
    asked = inputs(8, 8, placement=wanting(2))
    member = in_groups_as_built(asked, Axes(2), at_home=2)
    planned, one = make_plan(asked), make_plan(replace(member, placement=wanting(1), members=asked.members[::2]))
    placement = planned.placement
    assert placement.degrees == one.placement.degrees | {"tp_columns": 2}
    assert (placement.stage_bounds, placement.leaf_bounds) == (one.placement.stage_bounds, one.placement.leaf_bounds)
    assert planned.cost == one.cost
    assert sorted(placement.workers) == sorted(member.worker_id for member in asked.members)
    assert all(len(domains) == 1 for domains in domains_of_groups(asked, 2, placement.workers))
    assert "placement.tp_degree 2" in planned.reason
    reported = describe(planned, asked)
    assert "tp_columns 2 x" in reported and "2 workers share each stage tile by tile; the figures are each member's" in reported
    assert all(option.shape.tp_degree == 2 for option in planned.alternatives)


@pytest.mark.parametrize("degree", [2, 4])
def test_the_cost_of_a_placement_in_groups_is_what_it_was_planned_with(degree: int) -> None:
    asked = inputs(8, members(8, per_node=4), placement=wanting(degree), near_link=FAST, parallel_slots=8)
    planned = make_plan(asked)
    assert planned.placement.shape.tp_degree == degree
    assert placement_cost(planned.placement, asked).total_seconds == pytest.approx(planned.cost.total_seconds, rel=1e-12)


# ---- the planner's choice


def open_degree(units: int | tuple[UnitProfile, ...], crew: tuple[MemberInfo, ...], **fields: object) -> PlanInputs:
    wanted = PlacementSection(workers=16, tp_degree=None, hysteresis=0.05)
    return inputs(units, crew, **({"placement": wanted, "tensor_tiles": TileGrid(4), "near_link": FAST} | fields))


def best_by_force(asked: PlanInputs) -> PlannedPlacement:
    """Return the choice by its rule, from plans with each degree pinned."""
    best = make_plan(replace(asked, placement=asked.placement.model_copy(update={"tp_degree": 1})))
    for degree in (2, 4):
        found = make_plan(replace(asked, placement=asked.placement.model_copy(update={"tp_degree": degree})))
        is_so = found.placement.shape.tp_degree == degree
        if is_so and found.cost.seconds_per_sample < 0.95 * best.cost.seconds_per_sample:
            best = found
    return best


@pytest.mark.parametrize("slow", [1, 30, 1000], ids=lambda slow: f"links {slow} times as slow")
@pytest.mark.parametrize("leaves", [1, 2, 8])
@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("units", [3, 6])
def test_a_degree_that_is_left_open_is_the_best_of_all(units: int, workers: int, leaves: int, slow: int) -> None:
    links = FAST.model_copy(update={"reduce_latency_seconds": slow * 1e-5, "reduce_bandwidth_bytes_per_second": 1e11 / slow})
    asked = open_degree(units, members(workers, per_node=4), reduction_leaves=leaves, near_link=links)
    found, best = make_plan(asked), best_by_force(asked)
    assert found.placement.degrees == best.placement.degrees
    assert found.cost == best.cost


LONG_BLOCK = (unit(0.001), unit(0.1), unit(0.001))
"""Neither a pipeline nor, with one leaf, replicas shorten its step."""


def test_a_group_is_chosen_where_it_beats_the_same_workers_as_pipeline_and_replicas() -> None:
    asked = open_degree(LONG_BLOCK, members(4, per_node=4), reduction_leaves=1)
    found = make_plan(asked)
    assert found.placement.shape.tp_degree == 4 and "x as fast as tp" in found.reason
    slow = FAST.model_copy(update={"reduce_latency_seconds": 0.1})
    assert make_plan(replace(asked, near_link=slow)).placement.shape.tp_degree == 1
    for_cost = asked.placement.model_copy(update={"objective": "cost"})
    assert make_plan(replace(asked, placement=for_cost)).placement.shape.tp_degree == 1, "fewer workers do"


def test_a_group_is_chosen_where_nothing_else_fits_the_memory() -> None:
    wide = unit(0.01, parameters=1000, activation=100_000_000)
    alone = PlacementSection(workers=4, tp_degree=None, pp_degree=1)
    slow = FAST.model_copy(update={"reduce_latency_seconds": 0.1})

    def with_memory(size: int) -> PlanInputs:
        crew = members(4, per_node=4, memory_bytes=size)
        return open_degree((wide,) * 8, crew, placement=alone, reduction_leaves=1, near_link=slow)

    asked = with_memory(595_000_000)
    with pytest.raises(NothingFits):
        make_plan(replace(asked, placement=alone.model_copy(update={"tp_degree": 1})))
    found = make_plan(asked)
    assert found.placement.shape.tp_degree == 2 and "smaller groups do not fit" in found.reason
    with pytest.raises(NothingFits):
        make_plan(with_memory(230_000_000))


STATE = unit(0.01, parameters=1_000_000, activation=8_000_000, output=0)
"""Bytes: weights 1 M, moments 2 M, gradients 1 M a buffer, activations 8 M a micro-batch on a worker by itself."""


def sharing_state(tp_degree: int | None, shard: str, **fields: object) -> PlanInputs:
    wanted = PlacementSection(workers=16, tp_degree=tp_degree, shard=shard, hysteresis=0.05, pp_degree=1)
    return open_degree((STATE,) * 4, members(4, per_node=2, **fields), placement=wanted, state_ranges=2, reduction_leaves=8)


def test_a_member_of_a_group_holds_its_part_of_activations_and_its_replicas_share_of_moments() -> None:
    """Two replicas of groups of two: a member has half of its weights and moments of the two blocks, and of shared state half of
    those moments again."""
    planned = {shard: make_plan(sharing_state(2, shard)) for shard in ("none", "step")}
    assert {one.placement.degrees["dp"] for one in planned.values()} == {2}
    whole, shared = planned["none"].cost.peak_bytes, planned["step"].cost.peak_bytes
    assert whole - shared == (2 * 2_000_000 + 2 * 2_000_000 / 2) / 2
    alone = make_plan(replace(sharing_state(1, "step"), members=members(4, per_node=2)[:2])).cost.peak_bytes
    activations = 2 * (8_000_000 - round(8_000_000 * (10 / 34 + 12 / 34)))
    buffers = gradient_buffers(sharing_state(2, "step"), (0, 4, 8))
    weights, moments = 2 * 1_000_000 / 2, 2 * 2_000_000 / 2 / 2
    assert alone - shared == activations + weights * (1 + buffers) + moments, "of the two blocks"
    assert placement_cost(planned["step"].placement, sharing_state(2, "none")).peak_bytes == shared
    reported = describe(planned["step"], sharing_state(2, "step"))
    assert "at most 1 of 2 ranges" in reported and "2 workers share each stage tile by tile" in reported


def test_groups_and_shares_are_both_chosen_where_neither_alone_fits() -> None:
    def fits(room: int, tp_degree: int | None, shard: str) -> bool:
        try:
            return make_plan(sharing_state(tp_degree, shard, memory_bytes=room)).placement.shape.tp_degree > 0
        except NothingFits:
            return False

    peaks = {(tp, shard): make_plan(sharing_state(tp, shard)).cost.peak_bytes for tp in (1, 2) for shard in ("none", "step")}
    room = int(peaks[2, "step"])
    assert room < min(peaks[one] for one in peaks if one != (2, "step"))
    assert [fits(room, *one) for one in peaks] == [False, False, False, True]
    chosen = make_plan(sharing_state(None, "auto", memory_bytes=room)).placement
    assert (chosen.shape.tp_degree, chosen.shard) == (2, "step")
    roomy = make_plan(sharing_state(None, "auto", memory_bytes=10 * room)).placement
    assert roomy.shard == "none"


def test_the_choice_keeps_to_tiles_machines_and_processors() -> None:
    def degree(per_node: int = 4, **fields: object) -> int:
        asked = open_degree(LONG_BLOCK, members(4, per_node=per_node), reduction_leaves=1, **fields)
        return make_plan(asked).placement.shape.tp_degree

    assert [degree(tensor_tiles=TileGrid(tiles)) for tiles in (1, 2, 4)] == [1, 2, 4]
    assert [degree(per_node=size) for size in (1, 2, 3, 4)] == [1, 2, 2, 4]
    assert [degree(parallel_slots=slots) for slots in (1, 2, 4)] == [1, 2, 4]


@pytest.mark.parametrize("survivors", range(1, 10))
@pytest.mark.parametrize("pins", [{}, {"pp_degree": 2}, {"pp_degree": 1, "dp_degree": 2}], ids=str)
def test_any_number_of_survivors_has_a_plan_with_half_the_group_or_none(survivors: int, pins: dict[str, int]) -> None:
    lines = pins.get("pp_degree", 1) * pins.get("dp_degree", 1)
    planned = make_plan(inputs(8, survivors, placement=wanting(4, **pins)))
    expected = next(degree for degree in (4, 2, 1) if degree * lines <= survivors or degree == 1)
    placement = planned.placement
    assert placement.shape.tp_degree == expected
    assert len(placement.workers) == placement.shape.world_size
    assert len(placement.workers) + len(planned.spares) == survivors
    assert set(placement.workers).isdisjoint(planned.spares)
    assert ("allow no more" in planned.reason) == (expected < 4 or placement.pp_degree * placement.dp_degree < lines)


def test_nodes_of_odd_size_leave_one_group_between_them() -> None:
    crew = tuple(MemberInfo(f"w{place}", f"node-{place // 3}") for place in range(6))
    placement = make_plan(inputs(8, crew, placement=wanting(2, 6))).placement
    assert sorted(map(len, domains_of_groups(inputs(8, crew), 2, placement.workers))) == [1, 1, 2]


def test_members_of_a_group_stay_together_and_it_is_as_fast_as_its_slowest() -> None:
    first = make_plan(inputs(8, members(4, per_node=4), placement=wanting(2, 4, pp_degree=2)))
    crew = placed(members(4, per_node=4), first.placement)
    asked = inputs(8, crew, placement=wanting(2, 4, pp_degree=2), current=first.placement)
    again = make_plan(asked)
    assert again.placement.workers == first.placement.workers
    assert again.moved_bytes == 0
    slow = inputs(8, (replace(crew[0], speed=0.5), *crew[1:]), placement=wanting(2, 4))
    planned = make_plan(slow)
    assert min(replica_speeds(slow, planned.placement.workers, planned.placement.shape)) == 0.5
    assert planned.cost.total_seconds > make_plan(inputs(8, crew, placement=wanting(2, 4))).cost.total_seconds


def placed(crew: tuple[MemberInfo, ...], placement: Placement) -> tuple[MemberInfo, ...]:
    """Return the members with their places in the placement."""
    return tuple(replace(member, global_rank=placement.global_ranks.get(member.worker_id, -1)) for member in crew)


def test_a_group_over_two_nodes_stays_as_it_is() -> None:
    crew = tuple(MemberInfo(f"w{place}", f"node-{place // 3}") for place in range(6))
    first = make_plan(inputs(8, crew, placement=wanting(2, 6, pp_degree=3))).placement
    again = make_plan(inputs(8, placed(crew, first), placement=wanting(2, 6, pp_degree=3), current=first))
    assert again.placement.workers == first.workers
    assert again.moved_bytes == 0


@pytest.mark.parametrize("lost", range(8))
def test_a_lost_worker_leaves_the_other_groups_as_they_were(lost: int) -> None:
    section, crew = wanting(2, 8, pp_degree=2), members(8, per_node=8)
    first = make_plan(inputs(8, crew, placement=section)).placement
    survivors = tuple(member for member in placed(crew, first) if member.global_rank != lost)
    after = make_plan(inputs(8, survivors, placement=section, current=first)).placement
    now, before = (set(zip(one.workers[::2], one.workers[1::2], strict=True)) for one in (after, first))
    assert now <= before


def test_groups_are_formed_of_near_workers_first() -> None:
    """Three workers each of the machines a and b in one rack and c in another; the fourth group lies in a rack."""
    crew = tuple(MemberInfo(f"{at[0]}{i}", at[1], machine=at[0]) for at in ("ax", "cy", "bx") for i in range(3))
    formed = [[one.worker_id for one in group] for group in form_groups(crew, 2)]
    assert formed == [["a0", "a1"], ["b0", "b1"], ["c0", "c1"], ["a2", "b2"]]
    local = tuple(MemberInfo(f"w{i}", f"node-{i // 3}", machine="host") for i in range(6))
    formed = [[one.worker_id for one in group] for group in form_groups(local, 2)]
    assert formed == [["w0", "w1"], ["w3", "w4"], ["w2", "w5"]], "simulated nodes of one machine"
    assert lie_at_home(form_groups(local, 2)) and not lie_at_home(form_groups(crew, 2))


def test_a_group_is_in_no_single_place_that_not_all_of_its_members_share() -> None:
    at, away = MemberInfo("w0", "x", 100, speed=2.0, machine="a"), MemberInfo("w1", "y", 0, 3, 0.5, "b")
    assert as_one((at, away)) == MemberInfo("w0", "x and y", 100, -1, 0.5, "")
    assert as_one((at, replace(away, failure_domain="x", machine="a"))) == replace(at, speed=0.5)
    assert not lie_at_home([(MemberInfo("w0"), MemberInfo("w1"))]), "nothing is known of their place"


def test_the_degree_is_halved_until_the_workers_suffice() -> None:
    assert group_axes(inputs(8, 6, placement=wanting(4, pp_degree=2))) == (
        Axes(2), "tp 4 -> 2: 6 workers at pp 2 and dp 1 allow no more",
    )  # fmt: skip


def chosen(
    workers: int, current: Placement | None = None, pinned: PinnedShape | None = None, tp_degree: int | None = 2
) -> Choice:
    """Return the choice for a run of four blocks with so many workers; by default its job asks for groups of two."""
    job = parse_job({
        "model": {"family": "vit"}, "task": {"kind": "image_classification"}, "data": {"source": "digits"},
        "training": {"steps": 10, "batch_size": 32, "micro_batch_size": 4, "tensor_tiles": {"inner": 4}},
        "placement": {"workers": 4, "tp_degree": tp_degree},
    })  # fmt: skip
    crew = tuple(worker(name, *(0.1,) * 6) for name in "abcd"[:workers])
    return choose_placement(job, Situation(
        num_units=6, freeze_point=0, workers=crew, current=current, start={}, pinned=pinned, steps_left=5, reshape_seconds=1e6,
        boundary_bytes_per_sample=64, uncacheable="no", cache_reachable=False, train_samples=320, parallel_slots=None,
    ))  # fmt: skip


def test_a_group_that_fits_again_is_formed_whatever_it_costs() -> None:
    alone = chosen(1).placement
    assert alone.shape.tp_degree == 1
    again = chosen(4, current=alone)
    assert again.placement.shape.tp_degree == 2 and again.pays and "fits again" in again.reason
    assert not chosen(4, current=again.placement).pays


def test_a_degree_that_the_job_leaves_open_is_chosen_for_the_run() -> None:
    """On a processor's links no group pays; the run's memory of communicators is that of the largest group."""
    assert chosen(4, tp_degree=None).placement.shape.tp_degree == 1
    whole = chosen(4).placement
    kept = chosen(4, current=whole, tp_degree=None)
    assert not kept.pays and "fits again" not in kept.reason, "no degree is asked for"


def test_a_shape_by_command_has_the_degrees_that_it_names() -> None:
    for degrees in ({"pp": 2, "dp": 2}, {"pp": 1, "dp": 1, "tp_columns": 4}, {"pp": 2, "dp": 1, "tp_columns": 2}):
        assert chosen(4, pinned=PinnedShape(degrees=degrees)).placement.degrees == degrees
