"""make_plan: the best of all shapes, the job's pins and switches, memory, workers and any number of survivors."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.job.freezing import ElasticSection
from frostline_contract.pieces import Pieces
from frostline_contract.plan import Placement
from frostline_contract.shape import ParallelShape
from frostline_contract.statistics import LinkProfile
from frostline_controller.planner.cost import CostModel, step_cost
from frostline_controller.planner.inputs import MemberInfo, NothingFits
from frostline_controller.planner.leaves import deal_by_speed
from frostline_controller.planner.plans import buddies_of, uncovered_of
from frostline_controller.planner.search import COST_TOLERANCE, make_plan
from frostline_controller.planner.shapes import schedules_for
from tests.unit.controller.planner_cases import all_bounds, inputs, members, random_units, unit


def brute_force(case, frozen_in_stage_0: bool = True) -> float:
    """Return the least step time over every shape, cut and schedule that fits the memory; of the cuts that have all frozen units
    in stage 0, or of all cuts."""
    root, least = CostModel(case), float("inf")
    for dp in range(1, min(len(case.members), case.most_replicas) + 1):
        leaves = deal_by_speed(case.reduction_leaves, [1.0] * dp)
        for pp in range(1, min(len(case.members) // dp, case.trainable_units) + 1):
            for schedule, virtual in schedules_for(case, pp, dp):
                for bounds in all_bounds(case.num_units, case.freeze_point if frozen_in_stage_0 else 0, pp * virtual):
                    model, shape = root.of_shape(pp, dp), ParallelShape(pp, dp, virtual)
                    cost = step_cost(model, bounds, leaves, shape, schedule, [1.0] * dp)
                    if cost.peak_bytes <= case.memory_cap:
                        least = min(least, cost.total_seconds)
    return least


@pytest.mark.parametrize("seed", range(40))
def test_equals_brute_force_on_small_cases(seed):
    source = random.Random(seed)
    units = random_units(source, 7)
    cap = source.choice([None, 3 * sum(u.parameter_bytes for u in units) + 10**8])
    case = inputs(
        units,
        source.randrange(1, 7),
        freeze_point=source.randrange(0, len(units)),
        link=LinkProfile(reduce_bandwidth_bytes_per_second=source.choice([2e7, 5e8])),
        parallel_slots=source.choice([None, 2]),
        num_microbatches=source.choice([8, 12]),
        placement=PlacementSection(schedule="1f1b", worker_memory_bytes=cap),
    )
    for asked, frozen_in_stage_0 in ((case, False), (replace(case, prefix_whole=True), True)):
        least = brute_force(case, frozen_in_stage_0)
        if least == float("inf"):
            with pytest.raises(ValueError, match=r"bytes a worker, and placement\.worker_memory_bytes is"):
                make_plan(asked)
        else:
            assert make_plan(asked).cost.total_seconds == pytest.approx(least, rel=1e-9)


def test_frozen_units_are_divided_over_stages_where_nothing_fits_otherwise():
    frozen, units = 5, [unit(parameters=10**8)] * 10
    case = inputs(units, 6, freeze_point=frozen, placement=PlacementSection(schedule="1f1b", worker_memory_bytes=15 * 10**8))
    assert brute_force(case) == float("inf")
    planned = make_plan(case)
    assert planned.placement.stage_bounds[1] < frozen and not planned.placement.use_cache
    assert planned.cost.total_seconds == pytest.approx(brute_force(case, frozen_in_stage_0=False), rel=1e-9)
    assert planned.cost.peak_bytes <= case.memory_cap
    assert planned.reason.endswith("frozen units are divided over stages, since nothing fits otherwise")
    with pytest.raises(ValueError, match=r"the leanest needs 1,2\d\d,\d\d\d,\d\d\d bytes a worker"):
        make_plan(replace(case, placement=PlacementSection(schedule="1f1b", worker_memory_bytes=10**9)))


def test_frozen_units_that_are_computed_are_divided_over_stages_where_that_is_quicker():
    frozen, units = 5, [unit()] * 10
    case = inputs(units, 4, freeze_point=frozen, placement=PlacementSection(schedule="1f1b", pp_degree=4))
    planned, whole = make_plan(case), make_plan(replace(case, prefix_whole=True))
    assert whole.placement.stage_bounds[1] > frozen >= planned.placement.stage_bounds[1]
    gain = whole.cost.total_seconds / planned.cost.total_seconds
    assert gain > 1.2
    assert planned.reason.endswith(f"frozen units are divided over stages, {gain:.2f}x as fast as with all in stage 0")
    assert planned.cache_reason == whole.cache_reason
    cached = make_plan(replace(case, cache_available=True, cache_use="always"))
    assert cached.placement.use_cache and cached.placement.stage_bounds[1] > frozen, "the cache has the values at one boundary"
    cheap = make_plan(replace(case, placement=PlacementSection(schedule="1f1b", pp_degree=4, objective="cost")))
    assert cheap.placement.stage_bounds == whole.placement.stage_bounds


def planned_or_refusal(case):
    """The plan, or None where make_plan refuses."""
    try:
        return make_plan(case)
    except ValueError:
        return None


@settings(max_examples=80)
@given(
    times=st.lists(st.floats(1e-4, 0.1), min_size=2, max_size=10),
    workers=st.integers(1, 12),
    frozen=st.integers(0, 9),
    cap=st.one_of(st.none(), st.integers(10**7, 3 * 10**8)),
    virtual=st.sampled_from([1, 2]),
    schedule=st.sampled_from(["auto", "gpipe", "1f1b", "interleaved_1f1b"]),
    objective=st.sampled_from(["throughput", "cost"]),
    speed=st.sampled_from([1.0, 0.4]),
)
def test_a_plan_keeps_its_bounds_or_is_refused_with_numbers(times, workers, frozen, cap, virtual, schedule, objective, speed):
    wanted = PlacementSection(worker_memory_bytes=cap, virtual_stages=virtual, schedule=schedule, objective=objective)
    crew = (*members(workers), MemberInfo("slow", "node-9", speed=speed))
    case = inputs([unit(t) for t in times], crew, freeze_point=min(frozen, len(times) - 1), placement=wanted)
    if cap is not None and planned_or_refusal(case) is None:
        with pytest.raises(ValueError, match=f"placement.worker_memory_bytes is {cap:,}"):
            make_plan(case)
        return
    planned = make_plan(case)
    placement = planned.placement
    assert planned.cost.peak_bytes <= case.memory_cap
    assert placement.stage_bounds[0] == 0
    assert placement.stage_bounds[-1] == len(times)
    assert list(placement.stage_bounds) == sorted(set(placement.stage_bounds))
    with pytest.raises(NothingFits, match="no placement takes less than"):
        make_plan(case, below=planned.cost.seconds_per_sample * 0.5)
    assert sorted([*placement.workers, *planned.spares]) == sorted(member.worker_id for member in crew)
    assert placement.leaf_bounds[0] == 0
    assert placement.leaf_bounds[-1] == 8
    assert list(placement.leaf_bounds) == sorted(set(placement.leaf_bounds))
    assert all(len(placement.owners(u)) == placement.dp_degree for u in range(len(times)))


@pytest.mark.parametrize("survivors", range(1, 14))
def test_any_number_of_survivors_has_a_plan(survivors):
    planned = make_plan(inputs(9, survivors, placement=PlacementSection(workers=16, pp_degree=4)))
    assert planned.placement.pp_degree == min(4, survivors)
    assert len(planned.placement.workers) + len(planned.spares) == survivors
    if survivors < 4:
        assert f"pp 4 -> {survivors}" in planned.reason


def test_degrees_need_not_be_powers_of_two_and_what_does_not_fit_is_a_spare():
    seven = make_plan(inputs(9, 7, placement=PlacementSection(workers=8, pp_degree=3)))
    assert (seven.placement.pp_degree, seven.placement.dp_degree, len(seven.spares)) == (3, 2, 1)


def test_pins_hold():
    pinned = PlacementSection(workers=8, pp_degree=2, dp_degree=3, schedule="gpipe")
    placement = make_plan(inputs(8, 8, placement=pinned)).placement
    assert (placement.pp_degree, placement.dp_degree, placement.schedule) == (2, 3, "gpipe")
    start = make_plan(inputs(8, 4, placement=PlacementSection(initial_pp_degree=4))).placement
    assert (start.pp_degree, start.dp_degree) == (4, 1)
    later = make_plan(inputs(8, 4, current=start, placement=PlacementSection(initial_pp_degree=4))).placement
    assert later.pp_degree < 4


def test_a_pinned_schedule_that_cannot_run_is_refused_with_numbers():
    with pytest.raises(ValueError, match=r"1f1b cannot run pp \[4\] with \[2\] micro-batches"):
        make_plan(inputs(8, 16, placement=PlacementSection(workers=16, pp_degree=4, dp_degree=4, schedule="1f1b")))
    placement = make_plan(inputs(8, 16, placement=PlacementSection(workers=16, pp_degree=4, dp_degree=4))).placement
    assert placement.schedule == "gpipe"


def start_shape(pp: int, dp: int, units: int = 8) -> Placement:
    return make_plan(inputs(units, pp * dp, placement=PlacementSection(workers=pp * dp, pp_degree=pp, dp_degree=dp))).placement


def test_each_elastic_switch_keeps_its_half_of_the_shape():
    start = start_shape(4, 2)
    frozen = {"freeze_point": 5, "current": start, "start_pp_degree": 4, "start_dp_degree": 2}
    shrunk = make_plan(inputs(8, 8, **frozen, elastic=ElasticSection(replicas=False)))
    assert shrunk.placement.dp_degree == 2
    assert shrunk.placement.pp_degree < 4
    assert len(shrunk.spares) == 8 - len(shrunk.placement.workers)
    deep = make_plan(inputs(8, 8, **frozen, elastic=ElasticSection(pipeline=False)))
    assert deep.placement.pp_degree == 3  # 4 of the start, lowered to the 3 units that still learn
    assert "elastic.pipeline is off" in deep.reason
    both = make_plan(inputs(8, 8, **(frozen | {"freeze_point": 2}), elastic=ElasticSection(pipeline=False, replicas=False)))
    assert (both.placement.pp_degree, both.placement.dp_degree) == (4, 2)
    free = make_plan(inputs(8, 8, **frozen))
    assert len(free.placement.workers) == 8
    assert free.cost.total_seconds <= min(shrunk.cost.total_seconds, deep.cost.total_seconds)


def test_objective_cost_hands_back_what_freezing_saves_and_keeps_the_starts_speed():
    start = start_shape(4, 2)
    before = make_plan(inputs(8, 8, placement=PlacementSection(workers=8, pp_degree=4, dp_degree=2))).cost
    wanted = PlacementSection(workers=8, objective="cost")
    planned = make_plan(inputs(8, 8, freeze_point=6, current=start, start_pp_degree=4, start_dp_degree=2, placement=wanted))
    assert len(planned.placement.workers) < 8
    assert planned.cost.total_seconds <= before.total_seconds * (1 + COST_TOLERANCE)
    assert "fewest workers" in planned.reason
    fewer = make_plan(inputs(8, len(planned.placement.workers) - 1, freeze_point=6, placement=PlacementSection(workers=8)))
    assert fewer.cost.total_seconds > before.total_seconds * (1 + COST_TOLERANCE)


def test_a_stage_lies_in_two_failure_domains_where_there_are_two():
    planned = make_plan(inputs(8, members(8, per_node=4), placement=PlacementSection(workers=8, pp_degree=2, dp_degree=4)))
    assert planned.uncovered_stages == 0
    crew = [MemberInfo(f"a{i}", "a") for i in range(4)] + [MemberInfo(f"b{i}", "b") for i in range(2)]
    placement = make_plan(inputs(8, crew, placement=PlacementSection(workers=6, pp_degree=2, dp_degree=2))).placement
    domains = [{worker[0] for worker in placement.workers[column::2]} for column in range(2)]
    assert domains == [{"a", "b"}, {"a", "b"}]


def test_a_pipeline_without_replicas_has_a_member_elsewhere_that_can_keep_its_units():
    """Otherwise the loss of one node would destroy all copies of every unit."""
    pipeline = PlacementSection(workers=4, pp_degree=2, dp_degree=1)
    placement = make_plan(inputs(8, members(4, per_node=2), placement=pipeline)).placement
    domains = {worker: f"node-{int(worker[1]) // 2}" for worker in ("w0", "w1", "w2", "w3")}
    assert {domains[worker] for worker in placement.workers} == {"node-0", "node-1"}
    assert uncovered_of(placement, domains, buddies_of(placement, domains, Pieces(8)), Pieces(8)) == ()
    alone = pipeline.model_copy(update={"buddies": False})
    assert make_plan(inputs(8, members(4, per_node=2), placement=alone)).placement.workers == ("w0", "w1")
    faster = (MemberInfo("a0", "a", speed=2.0), MemberInfo("a1", "a", speed=2.0), MemberInfo("b0", "b"))
    assert make_plan(inputs(8, faster, placement=pipeline)).placement.workers == ("a0", "a1"), "speed first"


def test_state_stays_where_it_lies():
    start = start_shape(4, 1)
    crew = tuple(MemberInfo(f"w{i}", "", global_rank=start.workers.index(f"w{i}")) for i in range(4))
    same = make_plan(inputs(8, crew, current=start, placement=PlacementSection(pp_degree=4)))
    assert same.placement.workers == start.workers
    assert same.moved_bytes == 0
    halved = make_plan(inputs(8, crew, current=start, placement=PlacementSection(pp_degree=2, dp_degree=2)))
    kept = [set(halved.placement.units_of(worker)) & set(start.units_of(worker)) for worker in start.workers]
    assert all(len(units) == 2 for units in kept)  # every worker keeps both of its units and fetches two
    assert halved.moved_bytes == 8 * 12_000_000


def test_faster_workers_are_chosen_and_get_more_leaves():
    crew = [MemberInfo("slow", "a", speed=0.5), MemberInfo("fast", "b", speed=2.0), MemberInfo("even", "c")]
    placement = make_plan(inputs(2, crew, placement=PlacementSection(pp_degree=1, dp_degree=2))).placement
    assert placement.workers == ("fast", "even")
    assert placement.leaf_bounds == (0, 6, 8)


def test_memory_forces_a_deeper_pipeline_and_too_little_is_refused_with_both_numbers():
    heavy = [unit(parameters=10**8)] * 4
    fast = LinkProfile(reduce_bandwidth_bytes_per_second=1e12)
    roomy = make_plan(inputs(heavy, 4, optimizer_seconds_per_byte=0.0, link=fast)).placement
    tight = make_plan(
        inputs(heavy, 4, optimizer_seconds_per_byte=0.0, link=fast, placement=PlacementSection(worker_memory_bytes=9 * 10**8))
    ).placement
    assert tight.pp_degree > roomy.pp_degree
    with pytest.raises(ValueError, match=r"leanest needs 6\d\d,\d{3},\d{3} bytes a worker, and \S+ is 100,000,000;"):
        make_plan(inputs(heavy, 4, placement=PlacementSection(worker_memory_bytes=10**8)))
    with pytest.raises(ValueError, match="and a worker's device has 200,000,000;"):
        make_plan(inputs(heavy, members(4, memory_bytes=2 * 10**8)))


def test_fewer_cores_than_workers_make_local_plans_honest():
    honest = make_plan(inputs(8, 4, parallel_slots=2))
    hopeful = make_plan(inputs(8, 4))
    assert honest.cost.total_seconds >= 8 * 8 * 0.03 / 2
    assert hopeful.cost.total_seconds < honest.cost.total_seconds


def test_equal_inputs_give_equal_plans():
    assert make_plan(inputs(9, 7, freeze_point=3)) == make_plan(inputs(9, 7, freeze_point=3))
