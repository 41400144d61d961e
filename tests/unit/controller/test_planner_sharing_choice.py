"""The choice among pipeline, replicas, columns, depth and sharded state: the best of all, if it outweighs its groups' cost."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from frostline_contract.job import parse_job
from frostline_contract.job.cluster import PlacementSection
from frostline_contract.shape import ParallelShape
from frostline_contract.statistics import LinkProfile
from frostline_contract.tile_grid import TileGrid
from frostline_controller.planner.cost import CostModel, step_cost
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.leaves import deal_by_speed
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.shapes import schedules_for
from frostline_controller.planner.tensor.advice import advise_sharing
from frostline_controller.planner.tensor.built import as_groups, in_groups_as_built
from frostline_controller.planner.tensor.choice import choose_sharing, ways_of_sharing
from frostline_controller.planner.tensor.groups import NoGroups, as_one, form_groups, ranks_at_home
from frostline_controller.planner.tensor.traffic import Axes
from tests.unit.controller.planner_cases import all_bounds, inputs, members, random_units, unit
from tests.unit.controller.test_planner_tensor import NEAR


def brute_force(case) -> float:
    """Return the least seconds a sample over every way of sharing, replicas, depth and cut that fits the memory."""
    least = float("inf")
    for sharing in ways_of_sharing(case):
        try:
            one = as_groups(case, sharing)
        except NoGroups:
            continue
        least = min(least, least_of_shapes(one))
    return least


def least_of_shapes(one: PlanInputs) -> float:
    """Return the least seconds a sample over replicas, depth and cut; infinite where nothing fits the memory."""
    root, least = CostModel(one), float("inf")
    for dp in range(1, min(len(one.members), one.most_replicas) + 1):
        leaves = deal_by_speed(one.reduction_leaves, [1.0] * dp)
        most = one.placement.pp_degree or min(len(one.members) // dp, one.trainable_units)
        for pp in range(one.placement.pp_degree or 1, most + 1):
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


LONE = inputs(10, members(4, per_node=1), num_microbatches=1, reduction_leaves=1, link=NEAR)
"""One worker a node: no columns; one micro-batch: neither pipeline nor replicas are of use."""


def test_a_depth_is_told_where_it_beats_what_needs_less_of_a_run() -> None:
    best = choose_sharing(LONE).best
    assert best is not None and (best.sharing.words, best.degrees) == ("tp 1 x 4", {"dp": 1, "pp": 1, "tp_depth": 4})
    asked = replace(LONE, placement=PlacementSection(workers=4, tp_depth=4), tensor_tiles=TileGrid(1, 4))
    assert make_plan(asked).cost == best.planned.cost, "a run's own plan"
    slow = replace(LONE, link=LinkProfile(reduce_latency_seconds=1.0))
    assert choose_sharing(slow).best is None


@pytest.mark.parametrize(
    ("tiles", "obstacles"),
    [
        ({}, ["training.tensor_tiles.hidden 4 or more"]),
        ({"inner": 2, "hidden": 2}, ["training.tensor_tiles.hidden 4 or more"]),
        ({"inner": 2, "hidden": 4}, []),
        ({"inner": 2, "rows": 2}, ["training.tensor_tiles.hidden 4 or more", "training.tensor_tiles.rows 1"]),
    ],
    ids=str,
)
def test_the_advice_names_what_a_run_with_a_depth_begins_with(tiles: dict[str, int], obstacles: list[str]) -> None:
    job = parse_job({
        "model": {"family": "vit"}, "task": {"kind": "image_classification"}, "data": {"source": "digits"},
        "training": {"steps": 10, "batch_size": 32, "micro_batch_size": 4, "tensor_tiles": tiles},
    })  # fmt: skip
    advice = advise_sharing(job, LONE, 4)
    assert advice.as_json()["best"]["obstacles"] == [f"in a new run: {one}" for one in obstacles]
    assert advice.lines()[0].startswith("with tensors or state shared out: tp 1 x 4, pp 1 x dp 1, ")


# ---- groups and shares of state that a job leaves open at once


def both_open(seed: int, hysteresis: float) -> PlanInputs:
    """Return a random case with tp_degree null and shard auto; its memory is scarce, or there is just enough, or plenty."""
    source = random.Random(seed)
    units = [unit(1e-3, 10**5), *random_units(source, 7)[1:], unit(1e-3, 10**5)]
    room = source.choice([2.7, 3.0, 4.0, 5.0]) * sum(one.parameter_bytes for one in units)
    wanted = PlacementSection(
        schedule="1f1b", tp_degree=None, shard="auto", pp_degree=source.choice([None, 1]),
        worker_memory_bytes=round(room) + 10**7, hysteresis=hysteresis,
    )  # fmt: skip
    return inputs(
        units,
        members(4, per_node=source.choice([1, 2, 4])),
        freeze_point=source.choice([0, 1]),
        link=LinkProfile(reduce_bandwidth_bytes_per_second=source.choice([2e8, 5e9])),
        near_link=source.choice([None, NEAR]),
        num_microbatches=4,
        reduction_leaves=source.choice([1, 2, 4]),
        state_ranges=source.choice([2, 4]),
        tensor_tiles=TileGrid(4),
        placement=wanted,
    )


def pinned(case: PlanInputs, degree: int, shard: str) -> PlanInputs:
    """Return the case with a degree and a sharing of state, as the planner sees it: each group is one worker."""
    groups = form_groups(case.members, degree)
    section = case.placement.model_copy(update={"tp_degree": 1, "shard": shard})
    member = in_groups_as_built(replace(case, placement=section), Axes(degree), ranks_at_home(groups))
    return replace(member, members=tuple(map(as_one, groups)))


def least_with_both_open(case: PlanInputs) -> tuple[float, str]:
    """Return the least seconds a sample over all degrees and sharings of state, and the sharing; "use" where only that fits."""
    per_node = max(Counter(member.failure_domain for member in case.members).values())
    degrees = [degree for degree in (1, 2, 4) if degree <= per_node]
    for ways in (("none", "step"), ("use",)):
        found = [(least_of_shapes(pinned(case, degree, way)), way) for way in ways for degree in degrees]
        if min(found)[0] < float("inf"):
            return min(found)
    return float("inf"), ""


def seconds_chosen(case_with: Callable[[float], PlanInputs]) -> tuple[float, str, float]:
    """Return the seconds a sample of the planner's choice, its sharing of state, and the seconds with a hysteresis of 0.1.

    case_with: the case with a hysteresis. Infinity, "" and infinity where the planner says that nothing fits.
    """
    try:
        found = make_plan(case_with(0.0))
    except NothingFits:
        return float("inf"), "", float("inf")
    return found.cost.seconds_per_sample, found.placement.shard, make_plan(case_with(0.1)).cost.seconds_per_sample


@pytest.mark.parametrize("seed", range(40))
def test_groups_and_shares_that_are_open_at_once_equal_brute_force(seed: int) -> None:
    """Without hysteresis the choice is the best of all; with it, each of the two choices may forgo that share."""
    least, way = least_with_both_open(both_open(seed, 0.0))
    seconds, taken, near = seconds_chosen(partial(both_open, seed))
    assert (seconds, taken) == (pytest.approx(least, rel=1e-9), way)
    assert least * (1 - 1e-9) <= near <= least / 0.9**2
