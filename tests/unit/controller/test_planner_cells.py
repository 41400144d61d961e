"""Plans over token cells: slices and pipeline depth, from the cells' measured seconds and within the memory."""

import random
from dataclasses import replace
from itertools import combinations

import pytest

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.shape import ParallelShape
from frostline_contract.statistics import LinkProfile, UnitProfile
from frostline_controller.planner.advice import at_other_sizes
from frostline_controller.planner.best_simulated import JUDGED_WITHIN
from frostline_controller.planner.candidates import bound_of_replicas, candidates_of, price_of, seconds_of
from frostline_controller.planner.cell_advice import WORTH, advise_cells, in_cells, with_cells
from frostline_controller.planner.cost import CostModel
from frostline_controller.planner.inputs import NothingFits, PlanInputs
from frostline_controller.planner.leaves import deal_by_speed
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.shapes import dp_choices, schedules_for, shape_limits
from frostline_controller.planner.simulated_step import simulated_cost
from tests.unit.controller.planner_cases import all_bounds, inputs, members, unit

FREE_LINK = LinkProfile(latency_seconds=1e-12, bandwidth_bytes_per_second=1e18, reduce_latency_seconds=1e-12)


def measured(seconds: float, cells: tuple[float, ...], **fields):
    """Return a unit's profile; `cells` are the parts of its seconds that its cells take."""
    shares = tuple(cell / sum(cells) for cell in cells)
    one = unit(seconds, **fields)
    return one.model_copy(update={"cell_forward_seconds": shares, "cell_backward_seconds": tuple(2 * share for share in shares)})


def every_grouping(cells: int):
    """Yield every division of `cells` cells into slices."""
    for count in range(cells):
        for cuts in combinations(range(1, cells), count):
            bounds = (0, *cuts, cells)
            yield tuple(high - low for low, high in zip(bounds, bounds[1:], strict=False)) if cuts else ()


def brute(case) -> tuple[float, float]:
    """Return (least seconds, least bytes of any) over all shapes, cuts, groupings and schedules that fit, each simulated."""
    model, workers = CostModel(case), len(case.members)
    seconds, leanest = float("inf"), float("inf")
    for pp in range(1, min(workers, case.trainable_units) + 1):
        for dp in range(1, min(workers // pp, case.reduction_leaves) + 1):
            leaf_bounds = deal_by_speed(case.reduction_leaves, [1.0] * dp)
            for slices in every_grouping(case.token_cells) if pp > 1 else [()]:
                for schedule, virtual in schedules_for(case, pp, dp, max(1, len(slices))):
                    for bounds in all_bounds(case.num_units, case.freeze_point, pp * virtual):
                        shape = ParallelShape(pp, dp, virtual)
                        cost = simulated_cost(model.of_shape(pp, dp), bounds, leaf_bounds, shape, schedule, [1.0] * dp, slices)
                        leanest = min(leanest, cost.peak_bytes)
                        if cost.peak_bytes <= case.memory_cap:
                            seconds = min(seconds, cost.seconds_per_sample)
    return seconds * case.samples_of_step(1), leanest


def cases(count: int):
    rng = random.Random(11)
    for _ in range(count):
        cells = rng.randint(2, 4)
        parts = tuple(1 + rng.uniform(0, 0.5) * place for place in range(cells))
        units = [unit(0.002), *(measured(0.01, parts) for _ in range(rng.randint(2, 4))), measured(0.012, parts)]
        leaves = rng.choice((1, 2, 4))
        link = LinkProfile(latency_seconds=rng.choice((1e-6, 1e-4, 2e-3)), bandwidth_bytes_per_second=1e9)
        yield inputs(
            units, rng.randint(2, 4), num_microbatches=leaves * rng.randint(1, 2), reduction_leaves=leaves, link=link,
            token_cells=cells, freeze_point=rng.randint(0, 1),
        )  # fmt: skip


def test_the_plan_is_the_best_of_all_that_trying_everything_finds() -> None:
    for case in cases(25):
        assert make_plan(case).cost.total_seconds == pytest.approx(brute(case)[0], rel=1e-9), case


def test_memory_is_a_hard_limit_which_slices_help_to_keep() -> None:
    for case in cases(8):
        free = make_plan(case)
        cap = int(free.cost.peak_bytes) - 1
        capped = replace(case, placement=PlacementSection(workers=4, worker_memory_bytes=cap))
        seconds, leanest = brute(capped)
        if leanest > cap:
            with pytest.raises(ValueError, match="memory"):
                make_plan(capped)
            continue
        found = make_plan(capped)
        assert found.cost.peak_bytes <= cap
        # The search passes no cut that exceeds the memory, so it may miss a better one beyond; here never by more than this.
        assert found.cost.total_seconds == pytest.approx(seconds, rel=0.01)


def uneven(seed: int) -> PlanInputs:
    """Return a case of eight units whose cells take random seconds, and some of whose depths are pinned."""
    rng = random.Random(seed)
    count = rng.randint(2, 5)
    cells = [[rng.uniform(0.5, 1.5) for _ in range(count)] for _ in range(7)]
    units = [unit(rng.uniform(1e-4, 1e-2)), *(measured(rng.uniform(1e-4, 2e-2), tuple(one)) for one in cells)]
    leaves = rng.choice((1, 2, 4))
    section = PlacementSection(virtual_stages=rng.randint(1, 2), pp_degree=rng.choice((None, None, 2, 4)))
    return inputs(
        units, 6, num_microbatches=leaves * rng.randint(1, 2), reduction_leaves=leaves, token_cells=count, placement=section,
        freeze_point=rng.randint(0, 3), link=LinkProfile(latency_seconds=rng.choice((1e-6, 1e-4, 2e-3))),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_no_shape_is_ruled_out_that_would_be_faster_in_the_simulation(seed: int) -> None:
    """A shape's bound is one of its closed form; between uneven stages there are fewer waits, and some take a fifth less.

    So all shapes within `JUDGED_WITHIN` may be simulated, and no simulation is below what rules out a number of replicas.
    """
    case = uneven(seed)
    model, limits, planned = CostModel(case), shape_limits(case), make_plan(case).cost.seconds_per_sample
    for dp in dp_choices(case, limits):
        least = bound_of_replicas(model, limits, dp)
        for one in candidates_of(model, limits, dp):
            assert one.bound <= seconds_of(model, one) * (1 + 1e-9)
            simulated = price_of(model, one, simulated_cost)
            assert least <= simulated
            assert one.bound <= simulated * JUDGED_WITHIN
            assert planned <= simulated * (1 + 1e-9)


def long_sequences(num_microbatches: int, **fields):
    """Four workers, eight equal blocks, and a free embedding."""
    units = [unit(1e-6), *(measured(0.02, (1.0,)) for _ in range(8))]
    section = PlacementSection(workers=4, pp_degree=4, dp_degree=1)
    return inputs(
        units, 4, num_microbatches=num_microbatches, reduction_leaves=1, link=FREE_LINK, placement=section, **fields
    )  # fmt: skip


def test_cells_are_advised_for_few_micro_batches_and_not_for_many() -> None:
    few, many = (advise_cells(long_sequences(m), tokens=256, call_seconds=1e-3) for m in (2, 128))
    assert few.best.cells > 1 == many.best.cells
    steps = {one.cells: one.planned.cost.total_seconds for one in few.candidates}
    assert list(steps) == [1, 2, 4, 8, 16]
    assert min(steps.values()) < steps[1] / 1.5
    assert steps[16] > steps[4], "a call for every cell"
    assert "x faster than 4 with 1" in few.reason and few.changed == {"token_cells": few.best.cells}
    assert many.best is many.now and many.changed == {}


def at_sizes(seed: int) -> tuple[PlanInputs, tuple[PlanInputs, ...], float]:
    """Return a random case, itself at the other micro-batch sizes, and the seconds of a call."""
    rng = random.Random(seed)
    call, blocks = rng.choice((1e-5, 2e-4, 1e-3, 5e-3)), [rng.uniform(1e-3, 1e-2) for _ in range(rng.randint(3, 6))]
    embedding, batch, own = rng.choice((1e-6, 2e-3)), rng.choice((4, 8, 16)), rng.choice((1, 2))

    def at(size: int) -> tuple[UnitProfile, ...]:
        return unit(call + embedding * size), *(unit(call + one * size, output=100_000 * size) for one in blocks)

    link = LinkProfile(latency_seconds=rng.choice((1e-6, 1e-4, 2e-3)))
    case = inputs(at(own), 4, micro_batch_size=own, num_microbatches=batch // own, reduction_leaves=rng.choice((1, 2)), link=link)
    return case, at_other_sizes(case, batch, {size: at(size) for size in (1, batch)}), call


@pytest.mark.parametrize(("seed", "apart"), [(0, 1.1), (3, 1.02), (7, 1.04), (11, 1.2), (16, 1.08)])
def test_the_advised_pair_is_near_the_best_of_all_which_one_number_after_the_other_is_not(seed: int, apart: float) -> None:
    case, others, call = at_sizes(seed)
    every = {
        (one.micro_batch_size, cells): make_plan(with_cells(one, cells, call)).cost.seconds_per_sample
        for one in (case, *others)
        for cells in (1, 2, 4)
    }
    least = min(every.values())
    assert advise_cells(case, 64, call, others).best.planned.cost.seconds_per_sample <= least * WORTH
    size = min((seconds, size) for (size, cells), seconds in every.items() if cells == 1)[1]
    grid = min((seconds, cells) for (size, cells), seconds in every.items() if size == case.micro_batch_size)[1]
    assert every[size, grid] > apart * least


def test_the_jobs_own_grid_is_judged_by_its_measured_cells() -> None:
    case = long_sequences(2, token_cells=2)
    cells = tuple(one.model_copy(update={"cell_forward_seconds": (1.0, 2.0), "cell_backward_seconds": (1.0, 2.0)})
                  for one in case.units)  # fmt: skip
    found = {one.cells: one for one in advise_cells(replace(case, units=cells), 64, 1e-3).candidates}
    assert [cells for cells, one in found.items() if one.measured] == [2]
    assert found[2].planned.cost.total_seconds == make_plan(replace(case, units=cells)).cost.total_seconds
    # Another grid takes the same seconds, with as many calls more or fewer.
    assert sum(unit.forward_seconds for unit in in_cells(case.units, 2, 4, 1e-3)) == pytest.approx(
        sum(unit.forward_seconds for unit in case.units) + 8 * 2 * 1e-3
    )


def test_unequal_cells_fit_as_simulated_or_are_refused():
    """Slices of unequal cells keep other bytes than equal ones, by which the closed form counts."""
    case = inputs(
        [unit(activation=10**6)] * 4, 2, num_microbatches=4, reduction_leaves=4, token_cells=4,
        cell_tokens=(512, 256, 128, 128), placement=PlacementSection(workers=2, slices=2),
    )  # fmt: skip
    roomy = make_plan(case).cost.peak_bytes

    def within(share: float) -> PlanInputs:
        return replace(case, members=members(2, memory_bytes=round(roomy * share)))

    for share in (0.62, 0.64):  # by the closed form 64 % suffice
        with pytest.raises(NothingFits, match="the leanest needs"):
            make_plan(within(share))
    assert make_plan(within(0.66)).cost.peak_bytes <= within(0.66).memory_cap
