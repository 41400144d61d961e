"""Plans whose workers share each stage tile by tile (`placement.tp_degree`)."""

from dataclasses import replace

import pytest

from frostline_contract.job import parse_job
from frostline_contract.job.cluster import PlacementSection
from frostline_contract.plan import Placement
from frostline_controller.planner.adapter import Choice, Situation, choose_placement
from frostline_controller.planner.describe import describe
from frostline_controller.planner.in_groups import group_degree
from frostline_controller.planner.inputs import MemberInfo, PlanInputs, replica_speeds
from frostline_controller.planner.search import make_plan
from frostline_controller.run.durable import PinnedShape
from tests.unit.controller.planner_cases import inputs, members
from tests.unit.controller.test_planning import worker


def wanting(tp_degree: int, workers: int = 16, **pins: int) -> PlacementSection:
    return PlacementSection(workers=workers, tp_degree=tp_degree, **pins)


def domains_of_groups(found: PlanInputs, degree: int, workers: tuple[str, ...]) -> list[set[str]]:
    domain = {member.worker_id: member.failure_domain for member in found.members}
    return [{domain[worker] for worker in workers[first : first + degree]} for first in range(0, len(workers), degree)]


def test_a_group_lies_on_one_node_and_is_planned_as_one_worker() -> None:
    asked = inputs(8, 8, placement=wanting(2))
    planned, whole = make_plan(asked), make_plan(replace(asked, placement=wanting(1), members=asked.members[::2]))
    placement = planned.placement
    assert placement.degrees == whole.placement.degrees | {"tp_columns": 2}
    assert (placement.stage_bounds, placement.leaf_bounds) == (whole.placement.stage_bounds, whole.placement.leaf_bounds)
    assert sorted(placement.workers) == sorted(member.worker_id for member in asked.members)
    assert all(len(domains) == 1 for domains in domains_of_groups(asked, 2, placement.workers))
    assert "placement.tp_degree 2" in planned.reason
    told = describe(planned, asked)
    assert "tp_columns 2 x" in told and "2 workers share each stage tile by tile; the figures are one worker's" in told
    assert all(option.shape.tp_degree == 2 for option in planned.alternatives)


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
    placed = first.placement.global_ranks
    crew = tuple(replace(member, global_rank=placed[member.worker_id]) for member in members(4, per_node=4))
    asked = inputs(8, crew, placement=wanting(2, 4, pp_degree=2), current=first.placement)
    again = make_plan(asked)
    assert again.placement.workers == first.placement.workers
    assert again.moved_bytes == 0
    slow = inputs(8, (replace(crew[0], speed=0.5), *crew[1:]), placement=wanting(2, 4))
    planned = make_plan(slow)
    assert min(replica_speeds(slow, planned.placement.workers, planned.placement.shape)) == 0.5
    assert planned.cost.total_seconds > make_plan(inputs(8, crew, placement=wanting(2, 4))).cost.total_seconds


def test_the_degree_is_halved_until_the_workers_suffice() -> None:
    assert group_degree(inputs(8, 6, placement=wanting(4, pp_degree=2))) == (
        2, "tp 4 -> 2: 6 workers at pp 2 and dp 1 allow no more",
    )  # fmt: skip


def chosen(workers: int, current: Placement | None = None, pinned: PinnedShape | None = None) -> Choice:
    """What a run of four blocks that asks for groups of two does with so many workers."""
    job = parse_job({
        "model": {"family": "vit"}, "task": {"kind": "image_classification"}, "data": {"source": "digits"},
        "training": {"steps": 10, "batch_size": 32, "micro_batch_size": 4, "tensor_tiles": {"inner": 4}},
        "placement": {"workers": 4, "tp_degree": 2},
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


def test_a_shape_by_command_has_the_degrees_that_it_names() -> None:
    for degrees in ({"pp": 2, "dp": 2}, {"pp": 1, "dp": 1, "tp_columns": 4}, {"pp": 2, "dp": 1, "tp_columns": 2}):
        assert chosen(4, pinned=PinnedShape(degrees=degrees)).placement.degrees == degrees
