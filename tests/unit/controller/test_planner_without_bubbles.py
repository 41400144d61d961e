"""`placement.schedule: auto` takes a zero-bubble schedule where split backwards are measured, memory allows it, and it pays."""

from dataclasses import replace

import numpy as np
import pytest

from frostline_contract.job.cluster import PlacementSection
from frostline_contract.operations import Kind
from frostline_controller.planner.by_schedule import by_schedule
from frostline_controller.planner.inputs import PlanInputs
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.quota import Quota
from frostline_controller.planner.search import make_plan
from frostline_controller.planner.timed_step import timed_step
from frostline_controller.planner.without_bubbles import ALIKE, LONG, SPLITTING, WORTH
from tests.unit.controller.planner_cases import inputs, members, unit


def known(into: float = 0.5, weights: float = 0.55, units: int = 16, **fields: object) -> PlanInputs:
    """Four ranks, eight micro-batches; each part of a split backward takes so much of a whole one (0: not measured)."""
    measured = unit().model_copy(update={"input_gradient_cost": into, "weight_gradient_cost": weights, "split_bytes": 300_000})
    section = PlacementSection(**{"workers": 4, "pp_degree": 4, **fields.pop("placement", {})})
    return inputs((measured,) * units, 4, placement=section, **fields)


def pinned(about: PlanInputs, schedule: str) -> PlannedPlacement:
    return make_plan(replace(about, placement=about.placement.model_copy(update={"schedule": schedule})))


def test_it_is_taken_where_it_pays_and_the_reason_says_why() -> None:
    about = known()
    found, before = make_plan(about), pinned(about, "1f1b")
    assert found.placement.schedule in SPLITTING
    assert found.cost.total_seconds * WORTH < before.cost.total_seconds
    assert "; without bubbles, simulated: pp 4 x dp 1 " + found.placement.schedule in found.reason
    assert "against pp 4 x dp 1 1f1b" in found.reason
    assert before.placement.degrees in [one.shape.degrees for one in found.alternatives]


@pytest.mark.parametrize(("into", "weights", "words"), [(0.9, 0.9, "no schedule without bubbles pays"), (0.0, 0.0, "")])
def test_dear_or_unmeasured_split_backwards_keep_the_others(into: float, weights: float, words: str) -> None:
    found = make_plan(known(into, weights))
    assert found.placement.schedule == "1f1b"
    assert ("without bubbles" in found.reason) == bool(words) and words in found.reason


@pytest.mark.parametrize("units", [7, 8])
@pytest.mark.parametrize("micro_batches", [2, 3, 4, 12])
def test_what_is_taken_can_also_be_pinned(units: int, micro_batches: int) -> None:
    """Objective cost pins its choice on the workers that stay (`cheapest.py`): a refusal there ended the run."""
    about = known(units=units, num_microbatches=micro_batches, reduction_leaves=1)
    found = make_plan(about)
    again = pinned(about, found.placement.schedule)
    assert again.placement.schedule == found.placement.schedule
    assert again.placement.virtual_stages == found.placement.virtual_stages
    assert again.cost.total_seconds == pytest.approx(found.cost.total_seconds)


@pytest.mark.parametrize("freeze_point", [0, 3, 9])
@pytest.mark.parametrize("cap", [None, 1.0, 1.1])
def test_it_is_as_good_as_the_best_of_all_schedules_that_memory_allows(freeze_point: int, cap: float | None) -> None:
    """cap: the memory limit, as a multiple of the bytes that 1F1B needs."""
    about = known(freeze_point=freeze_point)
    if cap is not None:
        limit = int(pinned(about, "1f1b").cost.peak_bytes * cap) + 1
        about = replace(about, placement=about.placement.model_copy(update={"worker_memory_bytes": limit}))
    found = make_plan(about)
    assert found.cost.peak_bytes <= about.memory_cap
    costs = {one.schedule: one for one in by_schedule(found, about) if not one.refused}
    least = min(costs[name].step_seconds for name in (*SPLITTING, "1f1b") if name in costs)
    assert found.cost.total_seconds <= max(least * ALIKE, least * WORTH * (found.placement.schedule == "1f1b")) * (1 + 1e-9)
    assert found.cost.total_seconds == pytest.approx(costs[found.placement.schedule].step_seconds, rel=1e-9)


def test_it_is_chosen_together_with_the_slices() -> None:
    cells = unit(forward=0.04).model_copy(
        update={
            "cell_forward_seconds": (0.007, 0.009, 0.011, 0.013),
            "cell_backward_seconds": (0.014, 0.018, 0.022, 0.026),
            "input_gradient_cost": 0.5,
            "weight_gradient_cost": 0.55,
        }
    )
    about = replace(known(num_microbatches=4, reduction_leaves=4), units=(cells,) * 16, token_cells=4)
    found, tried = make_plan(about), dict[tuple[str, int], float]()
    for slices in (1, 2, 4):
        sliced = replace(about, placement=about.placement.model_copy(update={"slices": slices}))
        tried |= {(name, slices): pinned(sliced, name).cost.total_seconds for name in (*SPLITTING, "1f1b")}
    assert found.placement.schedule in SPLITTING
    assert found.cost.total_seconds <= min(tried.values()) * ALIKE
    assert found.cost.total_seconds * WORTH < min(tried["1f1b", slices] for slices in (1, 2, 4))
    assert "1f1b in 4 slices" in found.reason, "what it is compared with has slices"


def test_workers_that_take_turns_on_a_processor_have_no_waits_to_fill() -> None:
    assert make_plan(known(parallel_slots=2)).placement.schedule == "1f1b"


def test_under_a_quota_it_is_taken_where_operations_are_long_beside_the_quotas_period() -> None:
    about = known()  # a rank's forward takes 0.04 s
    found = make_plan(replace(about, quota=Quota(0.4, 0.039 / LONG)))
    assert found.placement.schedule in SPLITTING and "; without bubbles, simulated: " in found.reason
    halted_more = make_plan(replace(about, quota=Quota(0.4, 0.041 / LONG)))
    assert halted_more.placement.schedule == "1f1b" and "without bubbles" not in halted_more.reason


def test_what_would_take_too_long_to_be_run_on_paper_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frostline_controller.planner.without_bubbles.TURNS", 10)
    found = make_plan(known())
    assert found.placement.schedule == "1f1b"
    assert "no schedule without bubbles: 5 would take too long to be simulated" in found.reason
    monkeypatch.setattr("frostline_controller.planner.without_bubbles.TURNS", 4 * 3 * (8 + 4))
    found = make_plan(known())
    assert found.placement.schedule == SPLITTING[0] and "(4 more would take too long" in found.reason


def test_no_schedule_is_chosen_that_only_the_closed_form_could_judge() -> None:
    """Under a quota a step is simulated several times, so that fewer operations are too many."""
    sixteen = {"placement": {"workers": 16, "pp_degree": 16}, "members": members(16)}
    about = known(0.3, 0.4, units=32, num_microbatches=200, reduction_leaves=4, **sixteen)
    assert make_plan(about).placement.schedule in SPLITTING
    found = make_plan(replace(about, quota=Quota(0.4, 0.001)))
    assert found.placement.schedule == "1f1b" and "5 would take too long to be simulated" in found.reason


def test_a_step_with_next_to_no_bubble_is_not_looked_at() -> None:
    found = make_plan(known(num_microbatches=400, reduction_leaves=4))
    assert found.placement.schedule == "1f1b" and "without bubbles" not in found.reason


def test_parts_of_a_backward_last_as_measured_and_the_first_stage_that_learns_splits_none() -> None:
    about = known(0.4, 0.8, freeze_point=3)
    timed = timed_step(pinned(about, "zb_h1").placement, about)
    lasts = {kind: [one.end - one.start for one in timed if one.operation.kind is kind] for kind in Kind}
    (first,) = {one.operation.stage for one in timed if one.operation.kind is Kind.BACKWARD}
    assert first == 0 and {one.operation.stage for one in timed if one.operation.kind is Kind.WEIGHT_GRADIENT} == {1, 2, 3}
    send = about.link.latency_seconds + unit().output_bytes / about.link.bandwidth_bytes_per_second
    bounds = pinned(about, "zb_h1").placement.stage_bounds
    backward = 0.02 * np.diff(bounds)[1:]
    assert sorted(set(np.round(lasts[Kind.INPUT_GRADIENT], 9))) == pytest.approx(sorted(set(0.4 * backward + send)))
    assert sorted(set(np.round(lasts[Kind.WEIGHT_GRADIENT], 9))) == pytest.approx(sorted(set(0.8 * backward)))


def test_what_a_split_keeps_between_its_parts_counts_as_memory() -> None:
    lean = known()
    units = tuple(one.model_copy(update={"split_bytes": 0}) for one in lean.units)
    more, less = (pinned(about, "zb_h1").cost.peak_bytes for about in (lean, replace(lean, units=units)))
    assert more > less
    assert pinned(lean, "1f1b").cost.peak_bytes == pinned(replace(lean, units=units), "1f1b").cost.peak_bytes
    timed_otherwise = replace(lean, quota=Quota(0.4, 0.1))
    assert pinned(timed_otherwise, "zb_h1").cost.peak_bytes == more, "what is held does not hang on the workers' clocks"
