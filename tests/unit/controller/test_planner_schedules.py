"""A plan's cost follows the schedule's own figures, or those counted from its operations: never another schedule's."""

from dataclasses import replace

import pytest

from frostline_contract.job import parse_job
from frostline_contract.job.cluster import PlacementSection
from frostline_contract.schedule_figures import Figures
from frostline_contract.schedules import BUILT_IN, Schedule, gpipe
from frostline_controller.planner.adapter import check_shapes
from frostline_controller.planner.describe import describe
from frostline_controller.planner.placing import PlannedPlacement
from frostline_controller.planner.search import make_plan
from tests.unit.controller.planner_cases import inputs
from tests.unit.controller.synthetic_run import job_values


def planned(schedule: str, **placement: object):
    return make_plan(inputs(8, 4, placement=PlacementSection(workers=4, pp_degree=4, schedule=schedule, **placement)))


def test_an_own_schedule_without_figures_is_counted_and_not_taken_for_1f1b(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BUILT_IN, "own", Schedule(gpipe))
    own, one, all_first = planned("own"), planned("1f1b"), planned("gpipe")
    assert own.cost.peak_bytes == all_first.cost.peak_bytes > one.cost.peak_bytes
    assert own.cost.total_seconds == pytest.approx(all_first.cost.total_seconds)
    assert "schedule own brings no figures: its bubble and memory are counted from its operations" in own.reason
    assert "figures" not in one.reason


def test_cells_travel_in_slices_where_there_is_a_pipeline_to_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    def slices(pp_degree: int, schedule: str = "auto", asked: int | None = None) -> tuple[int, ...]:
        section = PlacementSection(workers=4, pp_degree=pp_degree, dp_degree=1, schedule=schedule, slices=asked)
        return make_plan(inputs(8, 4, placement=section, token_cells=5)).placement.slices

    monkeypatch.setitem(BUILT_IN, "own", Schedule(lambda *shape: gpipe(*shape)))
    assert [slices(4), slices(4, asked=2), slices(4, asked=1), slices(1)] == [(1,) * 5, (2, 3), (), ()]
    assert slices(4, "own") == ()


def test_a_plan_says_how_cells_travel() -> None:
    def said(token_cells: int, pp_degree: int) -> list[str]:
        known = inputs(8, 4, placement=PlacementSection(workers=4, pp_degree=pp_degree, slices=2), token_cells=token_cells)
        return [line for line in describe(make_plan(known), known).splitlines() if "cells" in line]

    assert said(1, 4) == []
    assert said(3, 4) == ["3 token cells a sequence, which travel in 2 slices of 1, 2 cells"]
    assert said(3, 1) == ["3 token cells a sequence, which travel in one slice"]


def test_one_forward_one_backward_needs_as_many_slices_as_stages() -> None:
    def schedule(token_cells: int) -> str:
        few = inputs(8, 4, num_microbatches=2, reduction_leaves=2, placement=PlacementSection(workers=4, pp_degree=4))
        return make_plan(replace(few, token_cells=token_cells)).placement.schedule

    assert [schedule(1), schedule(2)] == ["gpipe", "1f1b"]


def test_interleaved_needs_whole_rounds_of_slices_and_not_of_micro_batches() -> None:
    def cost(token_cells: int, schedule: str) -> tuple[str, float]:
        section = PlacementSection(workers=4, pp_degree=4, dp_degree=1, schedule=schedule, virtual_stages=2)
        found = make_plan(inputs(9, 4, num_microbatches=2, reduction_leaves=2, token_cells=token_cells, placement=section))
        return found.placement.schedule, found.cost.total_seconds

    assert cost(1, "auto")[0] == "gpipe", "two micro-batches, and a round is four"
    (chosen, least), (name, plain) = cost(2, "auto"), cost(2, "1f1b")
    assert (chosen, name) == ("interleaved_1f1b", "1f1b") and least < plain


def test_stages_a_rank_that_are_left_open_are_one_or_two_as_the_step_is_shorter() -> None:
    def planned(virtual_stages: int | None, units: int) -> PlannedPlacement:
        wanted = PlacementSection(workers=4, pp_degree=4, dp_degree=1, virtual_stages=virtual_stages)
        return make_plan(inputs(units, 4, placement=wanted))

    left, one, two = (planned(virtual, 8) for virtual in (None, 1, 2))
    assert left.placement == two.placement and left.placement.virtual_stages == 2
    assert left.cost.total_seconds < one.cost.total_seconds
    assert planned(None, 7).placement == planned(1, 7).placement, "seven units are too few for eight stages"


def test_an_own_schedules_figures_decide_what_fits_and_what_it_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    lean = Figures(lambda pp_rank, pp_degree, virtual_stages, micro_batches: 1, lambda *step: 0.0, fills=False)
    monkeypatch.setitem(BUILT_IN, "own", Schedule(gpipe, lean))
    own, one = planned("own"), planned("1f1b")
    assert own.cost.parts["bubble"] == 0.0 < one.cost.parts["bubble"]
    assert own.cost.peak_bytes < one.cost.peak_bytes
    cap = int(own.cost.peak_bytes) + 1
    assert planned("own", worker_memory_bytes=cap).placement.schedule == "own"
    with pytest.raises(ValueError, match=r"the leanest needs .*set placement.schedule \(1f1b\) to auto, raise placement.workers"):
        planned("1f1b", worker_memory_bytes=cap)


@pytest.mark.parametrize(
    "section",
    [{"placement": {"schedule": "zigzag"}}, {"reshapes": [{"step": 5, "pp_degree": 2, "dp_degree": 1, "schedule": "zigzag"}]}],
)
def test_a_controller_that_does_not_know_a_schedule_demands_it(section: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"'zigzag'; known: .*installed where workers run and where the controller plans"):
        check_shapes(parse_job(job_values(**section)), 8)
