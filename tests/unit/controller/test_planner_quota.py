"""A worker with a share of a processor: the effect of a control group's quota on work after a wait, and on plans."""

from dataclasses import replace

import numpy as np
import pytest

from frostline_contract.job import parse_job
from frostline_contract.job.cluster import PlacementSection
from frostline_contract.plan import Placement
from frostline_controller.planner.candidates import candidates_of, seconds_of
from frostline_controller.planner.cost import CostModel
from frostline_controller.planner.quota import Quota, quota_of
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


def test_a_pipeline_fills_sooner_where_the_others_have_waited() -> None:
    case = inputs([unit(0.001)] * 8, 4)
    placement = Placement(
        pp_degree=4, dp_degree=1, stage_bounds=(0, 2, 4, 6, 8), leaf_bounds=(0, 8), workers=("w0", "w1", "w2", "w3")
    )
    plain, dealt_out = placement_cost(placement, case), placement_cost(placement, replace(case, quota=QUOTA))
    rest = {name: seconds for name, seconds in plain.parts.items() if name != "bubble"}
    assert rest == {name: seconds for name, seconds in dealt_out.parts.items() if name != "bubble"}
    # Each of the others computes less than a period's quota at once.
    assert dealt_out.parts["bubble"] == pytest.approx(0.4 * plain.parts["bubble"])


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
