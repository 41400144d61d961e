"""A worker with a share of a processor: the effect of a control group's quota on work after a wait, and on plans."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from frostline_contract.job import parse_job
from frostline_contract.job.cluster import PlacementSection
from frostline_contract.plan import Placement
from frostline_controller.planner.candidates import candidates_of, seconds_of
from frostline_controller.planner.cost import CostModel
from frostline_controller.planner.quota import HaltedRanks, Quota, quota_of, spread_offsets
from frostline_controller.planner.shapes import shape_limits
from frostline_controller.planner.simulated_step import placement_cost
from tests.unit.controller.planner_cases import inputs, unit
from tests.unit.controller.synthetic_run import job_values

QUOTA = Quota(0.4, 0.01)


def dealt(quota: Quota, work: float, begin: float) -> float:
    """Return the seconds that `work` takes if it begins `begin` seconds into a period with unused quota, period by period."""
    now, period = begin, 0
    while True:
        end = (period + 1) * quota.period_seconds
        room = min(quota.share * quota.period_seconds, end - now)
        if work <= room + 1e-12:
            return now + work - begin
        work, now, period = work - room, end, period + 1


@pytest.mark.parametrize("work", [0.001, 0.004, 0.0041, 0.006, 0.0079, 0.0081, 0.0117, 0.05])
def test_work_after_a_wait_takes_what_the_quotas_dealt_out_give_on_average(work: float) -> None:
    # The middles of equal parts of a period: the integral to within a part's width.
    parts = 20_000
    begins = [(number + 0.5) / parts * QUOTA.period_seconds for number in range(parts)]
    average = sum(dealt(QUOTA, work, begin) for begin in begins) / parts
    assert float(QUOTA.after_a_wait(np.array([work / QUOTA.share]))[0]) == pytest.approx(average, rel=1e-3)


def test_work_after_a_wait_takes_at_least_its_processor_time_and_at_most_its_share() -> None:
    sustained = np.linspace(0.0, 0.1, 1001)
    waited = QUOTA.after_a_wait(sustained)
    assert np.all(waited >= QUOTA.share * sustained - 1e-15)
    assert np.all(waited <= sustained + 1e-15)
    assert np.all(np.diff(waited) >= -1e-15)


def test_only_a_share_that_threads_can_use_up_is_a_quota() -> None:
    def found(period_seconds: float, threads: int = 1, **placement: object) -> Quota | None:
        values = job_values()
        return quota_of(
            parse_job(
                {**values, "placement": {"workers": 2, **placement}, "training": {**values["training"], "threads": threads}}
            ),
            period_seconds,
        )

    assert found(0.01, worker_cpus=0.4) == QUOTA
    assert found(0.01, threads=2, worker_cpus=0.4) == Quota(0.2, 0.01)
    assert found(0.01) is found(0.0, worker_cpus=0.4) is found(0.01, worker_cpus=1.0) is None


@pytest.mark.parametrize("work", [0.001, 0.004, 0.0041, 0.0079, 0.0117, 0.05])
@pytest.mark.parametrize("begin", [0.0, 0.0033, 0.0061, 0.0099])
def test_a_halted_rank_works_until_its_quota_is_used_up_period_by_period(work: float, begin: float) -> None:
    ends = HaltedRanks(QUOTA, [0.0]).end(0, begin, work / QUOTA.share)
    assert ends - begin == pytest.approx(dealt(QUOTA, work, begin))


def test_work_in_parts_ends_when_the_same_work_in_one_part_does_also_over_several_steps() -> None:
    whole, parts = HaltedRanks(QUOTA, [-0.0021]), HaltedRanks(QUOTA, [-0.0021])
    now = begun = 0.0
    for number in range(40):
        now = parts.end(0, now, 0.0037)
        if number % 7 == 6:
            parts.go_on(now)
            begun, now = begun + now, 0.0
    assert begun + now == pytest.approx(whole.end(0, 0.0, 40 * 0.0037))


def test_a_wait_longer_than_a_period_loses_quota_and_a_shorter_one_keeps_it() -> None:
    ranks = HaltedRanks(QUOTA, [0.0, 0.0])
    for pp_rank in (0, 1):
        assert ranks.end(pp_rank, 0.0, 0.01) == pytest.approx(0.004), "a period's quota at full speed"
    assert ranks.end(0, 0.006, 0.01) == pytest.approx(0.014), "none is left in the first period"
    assert ranks.end(1, 0.016, 0.01) == pytest.approx(0.020), "the second period's; the one that passed meanwhile is lost"


def test_periods_of_simulated_ranks_begin_at_many_moments_of_a_period() -> None:
    found = sorted(offset / QUOTA.period_seconds for turn in spread_offsets(QUOTA, 4, 6) for offset in turn)
    assert len(found) == 24 and all(-1 <= one <= 0 for one in found)
    assert max(later - earlier for earlier, later in pairwise([-1.0, *found, 0.0])) < 0.1


@pytest.mark.parametrize("seconds", [3e-4, 1e-3, 3e-3, 1e-2])
def test_a_simulated_pipeline_with_quotas_takes_its_slowest_ranks_share_and_no_longer_than_without_waits(seconds: float) -> None:
    case = inputs([unit(seconds)] * 8, 4)
    placement = Placement(
        pp_degree=4, dp_degree=1, stage_bounds=(0, 2, 4, 6, 8), leaf_bounds=(0, 8), workers=("w0", "w1", "w2", "w3")
    )
    plain, halted = placement_cost(placement, case), placement_cost(placement, replace(case, quota=QUOTA))
    rest = {name: taken for name, taken in plain.parts.items() if name != "bubble"}
    assert rest == {name: taken for name, taken in halted.parts.items() if name != "bubble"}
    assert 0 <= halted.parts["bubble"] <= plain.parts["bubble"]
    assert halted.total_seconds == pytest.approx(sum(halted.parts.values()))


def test_a_plans_slices_are_its_own_and_not_what_the_job_asks_for() -> None:
    units = [unit(1e-9), *(unit() for _ in range(8))]  # the first one computes whole sequences
    case = inputs(units, 4, token_cells=4, placement=PlacementSection(workers=4, slices=1))
    whole = Placement(
        pp_degree=4, dp_degree=1, stage_bounds=(0, 3, 5, 7, 9), leaf_bounds=(0, 8), workers=("w0", "w1", "w2", "w3")
    )
    cut = whole.model_copy(update={"slices": (1, 1, 1, 1)})
    bubbles = [placement_cost(one, case).parts["bubble"] for one in (whole, cut)]
    assert bubbles[0] / 4 < bubbles[1] < bubbles[0] / 3, "a quarter, and the latencies of four times the messages"


@pytest.mark.parametrize("seed", range(12))
def test_no_shape_is_ruled_out_by_more_than_it_costs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    units = [unit(float(forward)) for forward in rng.uniform(1e-4, 2e-2, 9)]
    case = inputs(units, 6, quota=Quota(float(rng.uniform(0.1, 0.9)), 0.01), freeze_point=int(rng.integers(0, 5)))
    model = CostModel(case)
    limits = shape_limits(case)
    found = [one for dp in (1, 2, 3) for one in candidates_of(model, limits, dp)]
    assert found
    assert all(one.bound <= seconds_of(model, one) * (1 + 1e-9) for one in found)
