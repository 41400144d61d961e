"""Whether a reshape pays, whether the cache is read, the choice of a micro-batch size, and the text that people see."""

import json
import re
from dataclasses import replace

import pytest

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.job.freezing import ElasticSection
from frostline_contract.plan import Placement
from frostline_contract.statistics import CacheProfile
from frostline_controller.planner.advice import advise, units_at
from frostline_controller.planner.caching import cache_verdict
from frostline_controller.planner.cost import StepCost
from frostline_controller.planner.describe import as_json, describe
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.verdict import should_reshape
from tests.unit.controller.planner_cases import inputs, unit


def step(seconds: float, samples: int = 32) -> StepCost:
    return StepCost(seconds, {}, samples)


@pytest.mark.parametrize(
    ("before", "after", "steps", "reshape", "hysteresis", "expected"),
    [
        (1.0, 0.9, 100, 5.0, 0.0, True),
        (1.0, 0.9, 100, 10.0, 0.0, False),  # saves exactly what it costs
        (1.0, 0.9, 49, 5.0, 0.0, False),
        (1.0, 0.9, 100, 4.0, 0.05, True),  # 10 saved, 4 + 5 needed
        (1.0, 0.9, 100, 6.0, 0.05, False),
        (1.0, 1.1, 10**6, 0.0, 0.0, False),
        (1.0, 0.1, 0, 0.0, 0.0, False),
    ],
)
def test_a_reshape_must_repay_its_cost_and_the_hysteresis(before, after, steps, reshape, hysteresis, expected):
    verdict, reason = should_reshape(step(before), step(after), steps, reshape, hysteresis)
    assert verdict is expected
    assert reason.startswith("reshape:" if expected else "no reshape:")


def test_for_cost_workers_given_back_pay_though_no_step_is_faster():
    assert should_reshape(step(1.0), step(1.0), 100, 5.0, 0.05)[0] is False
    assert should_reshape(step(1.0), step(1.0), 100, 5.0, 0.05, "cost", 8, 4)[0] is True


def test_steps_of_different_batches_are_compared_by_the_sample():
    assert should_reshape(step(1.0, 32), step(1.2, 64), 100, 1.0, 0.0)[0] is True


FAST = CacheProfile(fetch_seconds_per_sample=1e-4, fill_seconds_per_sample=1e-4, hit_fraction=1.0)
SLOW = CacheProfile(fetch_seconds_per_sample=1e-1, fill_seconds_per_sample=1e-4, hit_fraction=1.0)
IN_USE = Placement(pp_degree=1, dp_degree=1, stage_bounds=(0, 8), leaf_bounds=(0, 8), workers=("w0",), use_cache=True)
FEW_LEFT = {"cache": FAST, "train_samples": 1000, "steps_left": 31}


@pytest.mark.parametrize(
    ("fields", "use", "words"),
    [
        ({"freeze_point": 0, "cache": FAST}, False, "nothing is frozen"),
        ({"cache": FAST, "elastic": ElasticSection(cache=False)}, False, "elastic.cache is off"),
        ({"cache": FAST, "cache_available": False}, False, "no server"),
        ({"cache": FAST, "cache_use": "never"}, False, "cache.use is never"),
        ({"cache": SLOW, "cache_use": "always"}, True, "cache.use is always"),
        ({"cache": FAST}, True, "measured fetch 0.0001 s against recompute 0.01 s"),
        ({"cache": SLOW}, False, "measured fetch 0.1 s against recompute 0.01 s"),
        ({"boundary_bytes_per_sample": 10**5}, True, "predicted fetch"),
        ({"boundary_bytes_per_sample": 10**8}, False, "predicted fetch"),
        (FEW_LEFT, False, "would not repay"),
        ({**FEW_LEFT, "current": IN_USE, "cached_point": 4}, True, "its build is paid for"),
        ({**FEW_LEFT, "current": IN_USE, "cached_point": 3}, False, "not repay"),
        ({**FEW_LEFT, "cache_shared": True}, True, "which other runs share"),
        ({"cache": SLOW, "cache_shared": True}, False, "measured fetch 0.1 s against recompute 0.01 s"),
    ],
)
def test_the_cache_is_read_where_that_is_faster(fields, use, words):
    case = inputs(8, 1, **({"freeze_point": 4, "cache_available": True} | fields))
    verdict, reason = cache_verdict(case)
    assert verdict is use
    assert words in reason
    assert make_plan(case).placement.use_cache is use


@pytest.mark.parametrize(("passes", "use"), [(1.5, False), (4.0, True)])
def test_a_cache_is_filled_where_later_passes_repay_the_slower_steps_that_fill_it(passes, use):
    """Stage 0 computes all frozen units of a sample that is missed; computed each time they are divided over the stages."""
    steps, fields = 1000, {"freeze_point": 8, "cache_available": True, "cache": FAST}
    case = inputs(10, 2, steps_left=steps, placement=PlacementSection(schedule="1f1b", pp_degree=2), **fields)
    case = replace(case, train_samples=int(steps * case.samples_of_step(1) / passes))
    planned, per_sample = make_plan(case), cache_verdict(case)
    assert planned.placement.use_cache is use and per_sample[0]
    each = make_plan(replace(case, cache_use="never"))
    assert use or planned.placement == each.placement
    assert use or re.match(r"no cache: \d+ samples would fill it, in [\d.e-]+ s each, and \d+ later ones", planned.cache_reason)
    assert make_plan(replace(case, cached_point=8)).placement.use_cache, "it is filled"


def test_a_cache_that_holds_little_is_not_used_where_computing_in_all_stages_is_quicker():
    scarce = CacheProfile(fetch_seconds_per_sample=1e-4, fill_seconds_per_sample=1e-4, hit_fraction=0.2)
    case = inputs(10, 2, freeze_point=8, placement=PlacementSection(pp_degree=2), cache_available=True, cache=scarce)
    planned = make_plan(case)
    assert cache_verdict(case)[0] and not planned.placement.use_cache
    assert "where the frozen units are computed" in planned.cache_reason


def test_reading_the_cache_makes_the_predicted_step_faster():
    with_cache = make_plan(inputs(8, 2, freeze_point=6, cache=FAST, cache_available=True))
    without = make_plan(inputs(8, 2, freeze_point=6))
    assert with_cache.cost.total_seconds < without.cost.total_seconds
    assert with_cache.cost.parts["prefix_recompute"] == 0.0


def test_advice_takes_the_largest_size_that_leaves_allow_where_calls_are_expensive():
    def at(size):  # 10 ms a call and 1 ms a sample
        return (unit(0.010 + 0.001 * size, activation=1000 * size),) * 4

    case = inputs(4, 1, micro_batch_size=2, num_microbatches=16, reduction_leaves=4)
    advice = advise(case, 32, {2: at(2), 4: at(4)})
    assert advice.best == 8
    assert "faster than 2" in advice.reason
    refused = {c.micro_batch_size: c.refusal for c in advice.candidates if c.planned is None}
    assert refused[16] == "2 micro-batches are fewer than reduction_leaves 4"
    assert units_at({2: at(2), 4: at(4)}, 8)[0].forward_seconds == pytest.approx(0.018)
    working = tuple(one.model_copy(update={"working_bytes": 500}) for one in at(2))
    assert units_at({2: working}, 8)[0].working_bytes == 2000, "what a micro-batch needs while it is computed"
    with pytest.raises(ValueError, match="no micro-batch size"):
        advise(case, 32, {2: at(2)}, sizes=(16, 32))


def test_a_plan_reads_as_text_and_as_json():
    case = inputs(8, 6, freeze_point=3, placement=PlacementSection(workers=6, pp_degree=2))
    planned = make_plan(case)
    text = describe(planned, case)
    assert "[0:***##] [1:###]" in text
    assert "pp 2 x dp 3" in text
    assert all(worker in text for worker in planned.placement.workers)
    assert f"why: {planned.reason}" in text
    data = json.loads(json.dumps(as_json(planned)))
    assert Placement(**data["placement"]) == planned.placement
    assert sum(data["cost"]["parts"].values()) == pytest.approx(data["cost"]["step_seconds"])
    wide = inputs(100, 1)
    assert "#100" in describe(make_plan(wide), wide)
