"""Cuts: equal to the best of all, within the memory cap, and changed as little as possible."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.shape import ParallelShape
from frostline_controller.planner.cost import CostModel, step_cost
from frostline_controller.planner.cuts import PartitionTable, StageCosts, refined_bounds
from frostline_controller.planner.leaves import deal_by_speed
from tests.unit.controller.planner_cases import all_bounds, inputs, unit


def table_for(case, dp, stages, schedule="1f1b"):
    model, leaves = CostModel(case), deal_by_speed(case.reduction_leaves, [1.0] * dp)
    costs = StageCosts(model, 8 // dp, leaves, schedule, 1)
    return model, leaves, PartitionTable(costs, stages, stages)


@pytest.mark.parametrize("seed", range(12))
def test_the_cut_equals_brute_force_in_whole_step_time(seed):
    source = random.Random(seed)
    units = [unit(source.uniform(0.001, 0.05), source.randrange(10**5, 10**7), source.randrange(10**5, 10**6)) for _ in range(7)]
    for freeze_point in (0, 2, 5):
        for stages in range(1, 8 - freeze_point):
            for dp in (1, 2):
                case = inputs(units, 8, freeze_point=freeze_point)
                model, leaves, table = table_for(case, dp, stages)
                costs = [
                    step_cost(model, bounds, leaves, ParallelShape(stages, dp), "1f1b", [1.0] * dp).total_seconds
                    for bounds in all_bounds(7, freeze_point, stages)
                ]
                shape = ParallelShape(stages, dp)
                found = step_cost(model, table.bounds(stages), leaves, shape, "1f1b", [1.0] * dp).total_seconds
                assert found == pytest.approx(min(costs), rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_under_a_memory_cap_the_cut_equals_brute_force_and_refuses_when_it_does(seed, schedule):
    source = random.Random(100 + seed)
    units = [unit(source.uniform(0.001, 0.05), source.randrange(10**5, 10**7), source.randrange(10**6, 10**7)) for _ in range(6)]
    free = CostModel(inputs(units, 4))
    leaves = deal_by_speed(8, [1.0])
    peaks = [step_cost(free, bounds, leaves, ParallelShape(3, 1), schedule, [1.0]).peak_bytes for bounds in all_bounds(6, 0, 3)]
    for cap in [*sorted({int(peak) for peak in peaks})[:: max(1, len(peaks) // 5)], int(min(peaks)) - 1]:
        case = inputs(units, 4, placement=PlacementSection(worker_memory_bytes=cap))
        _, _, table = table_for(case, 1, 3, schedule)
        fitting = [b for b, peak in zip(all_bounds(6, 0, 3), peaks, strict=True) if peak <= cap]
        weights = table.costs
        best = min((weights.heaviest(bounds) for bounds in fitting), default=float("inf"))
        assert table.bottleneck(3) == pytest.approx(best, rel=1e-12)


@settings(max_examples=60)
@given(
    times=st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=14),
    frozen=st.integers(0, 12),
    stages=st.integers(1, 14),
)
def test_every_unit_once_prefix_in_stage_0_and_a_trainable_unit_in_each(times, frozen, stages):
    freeze_point = min(frozen, len(times) - 1)
    stages = min(stages, len(times) - freeze_point)
    _, _, table = table_for(inputs([unit(t) for t in times], 16, freeze_point=freeze_point), 1, stages)
    bounds = table.bounds(stages)
    assert bounds[0] == 0
    assert bounds[-1] == len(times)
    assert all(low < high for low, high in zip(bounds, bounds[1:], strict=False))
    assert stages == 1 or bounds[1] > freeze_point


def test_of_equal_cuts_the_one_that_moves_least_is_taken_and_else_the_most_even():
    units = [unit(0.01)] * 3 + [unit(0.09)]
    case = inputs(units, 3)
    _, _, table = table_for(case, 1, 3)
    bottleneck = table.bottleneck(3)
    assert refined_bounds(table.costs, 3, 3, bottleneck, here=(0, 2, 3, 4)) == (0, 2, 3, 4)
    assert refined_bounds(table.costs, 3, 3, bottleneck, here=(0, 1, 3, 4)) == (0, 1, 3, 4)
    even = inputs(9, 3)
    _, _, table = table_for(even, 1, 3)
    assert refined_bounds(table.costs, 3, 3, table.bottleneck(3) * 1.5) == (0, 3, 6, 9)
