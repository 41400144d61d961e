"""The step's parts against hand-worked numbers, and the memory model's monotonicity."""

from dataclasses import replace

import numpy as np
import pytest

from frostline_contract.plan import Placement
from frostline_contract.shape import ParallelShape
from frostline_contract.statistics import CacheProfile, LinkProfile
from frostline_controller.planner.cache_costs import cache_seconds
from frostline_controller.planner.cost import CostModel, step_cost
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.leaves import deal_by_speed, exchange_bytes_factor, micro_batch_counts, tree_pieces
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.simulated_step import placement_cost
from tests.unit.controller.planner_cases import inputs, unit

FREE_LINK = LinkProfile(
    latency_seconds=0.0, bandwidth_bytes_per_second=1e18, reduce_latency_seconds=0.0, reduce_bandwidth_bytes_per_second=1e18
)


def cost(case, bounds, dp=1, schedule="1f1b", pp=None, use_cache=False, speeds=None):
    leaves = deal_by_speed(case.reduction_leaves, speeds or [1.0] * dp)
    stages = len(bounds) - 1
    shape = ParallelShape(pp or stages, len(leaves) - 1, stages // (pp or stages))
    return step_cost(CostModel(case, use_cache), bounds, leaves, shape, schedule, speeds or [1.0] * dp)


def test_one_worker_is_the_sum_of_its_units():
    case = inputs(4, 1, link=FREE_LINK, optimizer_seconds_per_byte=0.0)
    assert cost(case, (0, 4)).total_seconds == pytest.approx(8 * 4 * 0.03)


def test_1f1b_is_fill_plus_bottleneck():
    case = inputs(4, 4, link=FREE_LINK, optimizer_seconds_per_byte=0.0)
    found = cost(case, (0, 1, 2, 3, 4))
    assert found.total_seconds == pytest.approx((4 + 7) * 0.03, rel=1e-6)
    assert found.parts["bubble"] == pytest.approx(3 * 0.03, rel=1e-6)


def test_interleaving_divides_the_bubble_by_the_virtual_stages():
    case = inputs(8, 4, link=FREE_LINK, optimizer_seconds_per_byte=0.0)
    plain, interleaved = cost(case, (0, 2, 4, 6, 8)), cost(case, tuple(range(9)), pp=4, schedule="interleaved_1f1b")
    assert interleaved.parts["bubble"] == pytest.approx(plain.parts["bubble"] / 2, rel=1e-6)
    assert interleaved.parts["forward"] == pytest.approx(plain.parts["forward"], rel=1e-6)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_slices_divide_the_bubble(schedule):
    units = [unit(0.0), *(unit(0.01) for _ in range(4))]  # the first one computes whole sequences
    case = inputs(units, 4, link=FREE_LINK, optimizer_seconds_per_byte=0.0)
    whole, cells = (cost(replace(case, token_cells=count), (0, 2, 3, 4, 5), schedule=schedule) for count in (1, 4))
    assert cells.parts["bubble"] == pytest.approx(whole.parts["bubble"] / 4, rel=1e-6)
    assert cells.parts["forward"] == pytest.approx(whole.parts["forward"], rel=1e-6)


def test_a_stage_fills_the_pipeline_with_its_longest_slice_and_unit_0_with_whole_sequences():
    uneven = unit(0.01).model_copy(update={"cell_forward_seconds": (1.0, 3.0), "cell_backward_seconds": (1.0, 3.0)})
    case = inputs([uneven] * 3, 3, link=FREE_LINK, optimizer_seconds_per_byte=0.0, token_cells=2)
    # Each stage takes 0.03 s a micro-batch: the first at once, the others a quarter and three quarters.
    assert cost(case, (0, 1, 2, 3)).total_seconds == pytest.approx(0.03 + 2 * 0.0225 + 7 * 0.03 + 0.0075, rel=1e-6)


def test_gpipe_pays_for_the_largest_forward_and_the_largest_backward():
    # stage 0: a frozen unit of 0.10 s and a trainable one of 0.01 + 0.02 s; stage 1: two trainable units, 0.02 + 0.04 s
    units = [unit(0.10), unit(0.01), unit(0.01), unit(0.01)]
    case = inputs(units, 2, freeze_point=1, link=FREE_LINK, optimizer_seconds_per_byte=0.0)
    assert cost(case, (0, 2, 4), schedule="gpipe").total_seconds == pytest.approx(0.19 + 7 * (0.11 + 0.04), rel=1e-6)
    assert cost(case, (0, 2, 4)).total_seconds == pytest.approx(0.19 + 7 * 0.13, rel=1e-6)


def test_frozen_units_cost_their_forward_or_a_fetch():
    case = inputs(4, 1, freeze_point=2, link=FREE_LINK, optimizer_seconds_per_byte=0.0)
    assert cost(case, (0, 4)).parts["prefix_recompute"] == pytest.approx(8 * 2 * 0.01)
    cached = inputs(
        4, 1, freeze_point=2, cache=CacheProfile(fetch_seconds_per_sample=0.001, fill_seconds_per_sample=0.002, hit_fraction=0.75)
    )
    parts = cost(cached, (0, 4), use_cache=True).parts
    assert parts["cache_fetch"] == pytest.approx(8 * 4 * (0.75 * 0.001 + 0.25 * 0.002))
    assert parts["prefix_recompute"] == pytest.approx(8 * 2 * 0.01 * 0.25)


def test_a_transit_shape_with_frozen_units_in_later_stages_has_a_cost():
    case = inputs(4, 2, freeze_point=3, link=FREE_LINK, optimizer_seconds_per_byte=0.0)
    found = cost(case, (0, 2, 4))
    assert found.total_seconds == pytest.approx(0.02 + 0.04 + 7 * 0.04, rel=1e-6)


def test_parts_sum_to_the_total_and_fewer_cores_bound_it_below():
    case = inputs(8, 4)
    shared = inputs(8, 4, parallel_slots=2)
    alone, together = cost(case, (0, 8), dp=4), cost(shared, (0, 8), dp=4)
    assert sum(together.parts.values()) == pytest.approx(together.total_seconds)
    assert alone.parts["contention"] == 0.0
    assert together.total_seconds - together.parts["exchange"] - together.parts["vote"] >= 8 * 8 * 0.03 / 2


def test_slower_replicas_get_fewer_leaves_and_pace_the_step():
    assert deal_by_speed(8, [1.0, 3.0]) == (0, 2, 8)
    assert deal_by_speed(8, [1.0, 1.0, 1.0]) == (0, 3, 5, 8)
    case = inputs(4, 2, link=FREE_LINK, optimizer_seconds_per_byte=0.0)
    assert cost(case, (0, 4), dp=2, speeds=[1.0, 3.0]).total_seconds == pytest.approx(2 * 4 * 0.03, rel=1e-6)


def test_exchange_counts_the_pieces_of_unaligned_replicas():
    assert [tree_pieces(*leaves) for leaves in [(0, 3), (3, 5), (5, 8)]] == [2, 2, 2]
    assert [tree_pieces(*leaves) for leaves in [(0, 4), (4, 8), (0, 8), (2, 8), (1, 2)]] == [1, 1, 1, 2, 1]
    assert exchange_bytes_factor((0, 2, 4, 6, 8)) == pytest.approx(2 * 3 / 4)
    assert exchange_bytes_factor((0, 3, 5, 8)) == pytest.approx(2 / 3 * 3)
    assert micro_batch_counts((0, 3, 8), 11, 8) == (4, 7)


def test_memory_counts_frozen_moments_gradient_buffers_and_activations_in_flight():
    one = inputs([unit(parameters=100, activation=1000, output=0)], 1)
    # weights 100, moments 200, log2(8) gradient buffers, one micro-batch in flight of a 1-stage 1F1B
    assert cost(one, (0, 1)).peak_bytes == 100 + 200 + 3 * 100 + 1000
    assert cost(one, (0, 1), schedule="gpipe").peak_bytes == 100 + 200 + 3 * 100 + 8 * 1000
    two = inputs([unit(parameters=100, activation=1000, output=0)] * 2, 1, freeze_point=1)
    assert cost(two, (0, 2)).peak_bytes == 2 * 300 + 3 * 100 + 1000
    assert cost(one, (0, 1), dp=8).peak_bytes == 300 + (1 + 1) * 100 + 1000


def test_a_stage_keeps_what_enters_it_beside_its_own_activations():
    """Each of four micro-batches in flight keeps the 10 bytes that came to the second stage; behind frozen units too."""
    units = [unit(parameters=0, activation=1000, output=10)] * 3
    model, frozen = CostModel(inputs(units)), CostModel(inputs(units, freeze_point=1))
    assert model.stage_bytes(1, 3, 4, (0, 8)) == 4 * (2 * 1000 + 10)
    assert model.stage_bytes(0, 3, 4, (0, 8)) == 4 * 3 * 1000
    assert frozen.stage_bytes(0, 3, 4, (0, 8)) == 4 * (2 * 1000 + 10) + frozen.transient_bytes


def test_what_has_never_learnt_has_no_moments_in_memory_nor_to_be_moved():
    frozen = CostModel(inputs(units=4, freeze_point=3))
    initial = CostModel(inputs(units=4, freeze_point=3, never_learnt=2))
    moments = 2 * 2 * 4_000_000
    assert frozen.stage_bytes(0, 4, 1, (0, 8)) - initial.stage_bytes(0, 4, 1, (0, 8)) == moments
    assert initial.inputs.unit_state_bytes == (4_000_000, 4_000_000, 12_000_000, 12_000_000)
    with pytest.raises(ValueError, match="2 units have never learnt, and only 1 are frozen"):
        inputs(units=4, freeze_point=1, never_learnt=2)


def test_tied_matrices_cost_an_exchange_and_a_copy_until_they_freeze():
    free, tied = inputs(4, 2), inputs(4, 2, tied=True)
    assert cost(tied, (0, 2, 4)).total_seconds > cost(free, (0, 2, 4)).total_seconds
    assert cost(tied, (0, 4)).total_seconds == cost(free, (0, 4)).total_seconds
    assert cost(tied, (0, 2, 4)).peak_bytes > cost(free, (0, 2, 4)).peak_bytes


def test_placement_cost_is_the_prediction_of_the_placement_as_it_stands():
    case = inputs(4, 2)
    placement = Placement(pp_degree=2, dp_degree=1, stage_bounds=(0, 2, 4), leaf_bounds=(0, 8), workers=("w0", "w1"))
    assert placement_cost(placement, case) == cost(case, (0, 2, 4))
    assert cache_seconds(case)[2] == 1.0


NEAR = LinkProfile(
    latency_seconds=1e-6, bandwidth_bytes_per_second=1e12, reduce_latency_seconds=1e-6, reduce_bandwidth_bytes_per_second=1e12
)
FAR = LinkProfile(
    latency_seconds=1e-3, bandwidth_bytes_per_second=1e9, reduce_latency_seconds=1e-3, reduce_bandwidth_bytes_per_second=1e9
)


def on_machines(*machines: str) -> PlanInputs:
    case = inputs(8, len(machines), link=FAR, near_link=NEAR)
    members = tuple(
        replace(member, machine=machine, failure_domain=machine) for member, machine in zip(case.members, machines, strict=True)
    )
    return replace(case, members=members)


@pytest.mark.parametrize(
    ("machines", "within"),
    [
        (("a", "a", "a", "a", "b", "b", "b", "b"), {1, 2, 4}),
        (("a", "a", "b", "b", "c", "c"), {1, 2}),
        (("a", "a", "a", "b"), {1}),
        (("a", "a", "", ""), set()),
    ],
)
def test_a_pipeline_sends_within_a_machine_where_machines_hold_whole_pipelines(
    machines: tuple[str, ...], within: set[int]
) -> None:
    case = on_machines(*machines)
    assert {depth for depth in range(1, len(machines) + 1) if case.pipeline_link(depth) == NEAR} == within


def test_sends_cost_what_their_kind_of_link_costs_and_sums_what_the_network_costs() -> None:
    case = on_machines("a", "a", "b", "b")
    model = CostModel(case)
    near, far = model.of_shape(2, 1), model.of_shape(4, 1)
    assert near.send_seconds[4] < far.send_seconds[4] / 100
    assert near.least_send_seconds == far.least_send_seconds <= near.send_seconds[4], "a bound that holds for every depth"
    assert near.exchange(np.array([1e6]), (0, 2, 4)) == far.exchange(np.array([1e6]), (0, 2, 4))


def test_a_fast_link_within_machines_makes_pipelines_as_deep_as_a_machine_worth_while() -> None:
    """A slow network, whose sums cost too much for four replicas: two pipelines of two, each in its machine."""
    case = on_machines("a", "a", "b", "b")
    heavy = tuple(unit.model_copy(update={"output_bytes": 10**8, "parameter_bytes": 4 * 10**7}) for unit in case.units)
    apart = make_plan(replace(case, units=heavy)).placement
    alike = make_plan(replace(case, units=heavy, near_link=None)).placement
    assert (apart.pp_degree, alike.pp_degree) == (2, 1)
    for dp_rank in range(apart.dp_degree):
        workers = [apart.workers[global_rank] for global_rank in apart.shape.replica(dp_rank)]
        assert len({member.machine for member in case.members if member.worker_id in workers}) == 1
