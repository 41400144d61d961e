"""The choice among pipeline, replicas, columns, depth and sharded state: the best of all, if it outweighs its groups' cost."""

import random
from dataclasses import replace

import pytest

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.shape import ParallelShape
from frostline_contract.statistics import LinkProfile
from frostline_controller.planner.cost import CostModel, step_cost
from frostline_controller.planner.leaves import deal_by_speed
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.shapes import schedules_for
from frostline_controller.planner.tensor.choice import choose_sharing, ways_of_sharing
from frostline_controller.planner.tensor.groups import NoGroups
from frostline_controller.planner.tensor.member_costs import grouped
from tests.unit.controller.planner_cases import all_bounds, inputs, members, unit
from tests.unit.controller.test_planner_tensor import NEAR


def brute_force(case) -> float:
    """Return the least seconds a sample over every way of sharing, replicas, depth and cut that fits the memory."""
    least = float("inf")
    for sharing in ways_of_sharing(case):
        try:
            one = grouped(case, sharing)
        except NoGroups:
            continue
        root = CostModel(one)
        for dp in range(1, min(len(one.members), one.reduction_leaves) + 1):
            leaves = deal_by_speed(one.reduction_leaves, [1.0] * dp)
            for pp in range(1, min(len(one.members) // dp, one.trainable_units) + 1):
                for schedule, virtual in schedules_for(one, pp, dp):
                    for bounds in all_bounds(one.num_units, one.freeze_point, pp * virtual):
                        shape = ParallelShape(pp, dp, virtual)
                        cost = step_cost(root.of_shape(pp, dp), bounds, leaves, shape, schedule, [1.0] * dp)
                        if cost.peak_bytes <= one.memory_cap:
                            least = min(least, cost.seconds_per_sample)
    return least


def random_case(seed: int):
    source = random.Random(seed)
    units = [
        unit(source.uniform(1e-3, 3e-2), source.randrange(10**5, 2 * 10**7), source.randrange(10**6, 10**7))
        for _ in range(source.randrange(3, 6))
    ]
    whole = sum(one.parameter_bytes for one in units)
    cap = source.choice([None, whole + 10**7, 2 * whole + 10**7])
    per_node = source.choice([2, 4])
    return inputs(
        units,
        members(source.choice([2, 4]), per_node=per_node),
        freeze_point=source.choice([0, 1]),
        link=LinkProfile(reduce_bandwidth_bytes_per_second=source.choice([2e7, 5e8])),
        near_link=source.choice([None, NEAR]),
        num_microbatches=source.choice([2, 4]),
        reduction_leaves=2,
        placement=PlacementSection(schedule="1f1b", worker_memory_bytes=cap, hysteresis=0.0),
    )


@pytest.mark.parametrize("seed", range(24))
def test_the_choice_equals_brute_force_on_small_cases(seed: int) -> None:
    case = random_case(seed)
    found = choose_sharing(case)
    ends = [one.seconds_per_sample for one in (found.plain, found.best) if one is not None]
    assert min(ends, default=float("inf")) == pytest.approx(brute_force(case), rel=1e-9)


def test_memory_that_no_pipeline_has_makes_a_group_or_shares_state() -> None:
    """One block is larger than a worker: no pipeline can cut it."""
    units = [unit(1e-3, 1000), unit(0.1, 40_000_000), unit(1e-3, 1000)]
    case = inputs(units, members(4, per_node=4, memory_bytes=120_000_000), near_link=NEAR)
    found = choose_sharing(case)
    assert found.plain is None and found.best is not None
    assert found.best.sharing.group_size == 4 == found.best.workers
    roomy = replace(case, members=members(4, per_node=4))
    assert choose_sharing(roomy).plain is not None


def test_a_group_is_told_where_it_beats_pipeline_and_replicas_and_not_for_less_than_the_hysteresis() -> None:
    """One micro-batch of one leaf leaves a pipeline nothing to overlap and replicas nothing to share."""
    case = inputs(10, members(4, per_node=4), num_microbatches=1, reduction_leaves=1, near_link=NEAR)
    best = choose_sharing(case).best
    assert best is not None and (best.sharing.words, best.degrees) == ("tp 4", {"dp": 1, "pp": 1, "tp_columns": 4})
    assert best.seconds_per_sample < make_plan(case).cost.seconds_per_sample / 2
    picky = replace(case, placement=PlacementSection(hysteresis=0.9))
    assert choose_sharing(picky).best is None
    slow = replace(case, near_link=LinkProfile(reduce_latency_seconds=1.0))
    assert choose_sharing(slow).best is None, "sums that take longer than they save"
