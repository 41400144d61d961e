"""The report draws the planned step, and below it the same step as it ran."""

import json
import re
from pathlib import Path

import pytest

from frostline_contract.plan import Plan
from frostline_contract.schedule_figures import Timed
from frostline_contract.statistics import OperationTime, StepTrace
from frostline_controller.planner.profile_file import MeasuredProfile
from frostline_controller.planner.program_picture import LEFT, WIDTH
from frostline_controller.planner.timed_step import timed_step
from frostline_controller.report.build import build_report
from frostline_controller.report.data import read_run
from frostline_controller.report.step_pictures import step_charts
from tests.unit.controller.planner_cases import inputs
from tests.unit.controller.synthetic_run import UNITS, write_run
from tests.unit.controller.test_plan_pictures import boxes

KNOWN = inputs(UNITS, 4, num_microbatches=8)
SLOWER = 1.25


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run whose steps 16 and 32 of its first generation, four ranks deep, took 1.25 times what was planned."""
    folder = write_run(tmp_path / "digits")
    profile = MeasuredProfile(micro_batch_size=8, units=KNOWN.units, link=KNOWN.link)
    (folder / "profile.json").write_text(profile.model_dump_json())
    trace(folder, 16, 1.0)
    trace(folder, 32, SLOWER)
    return folder


def planned(folder: Path) -> tuple[Plan, list[Timed]]:
    plan = read_run(folder).plan_of("1.1")
    assert plan is not None
    return plan, timed_step(plan.placement, KNOWN)


def trace(folder: Path, step: int, slower: float, lineage: int = 0, ranks: int = 4) -> None:
    """Return the trace that all ranks send of a step; half a second has passed since the vote."""
    _, timed = planned(folder)
    with (folder / "traces.jsonl").open("a") as file:
        for pp_rank in range(ranks):
            operations = tuple(
                OperationTime(
                    kind=one.operation.kind.value, stage=one.operation.stage, micro_batch=one.operation.micro_batch,
                    slice=one.operation.slice, start=0.5 + one.start * slower, end=0.5 + one.end * slower,
                )
                for one in timed if one.pp_rank == pp_rank
            )  # fmt: skip
            line = StepTrace(
                lineage=lineage, step=step, generation="1.1", freeze_point=0, pp_rank=pp_rank, operations=operations
            )  # fmt: skip
            file.write(json.dumps(line.model_dump()) + "\n")


def test_the_newest_traced_step_is_drawn_below_the_planned_one_on_one_axis(run_dir: Path) -> None:
    _, timed = planned(run_dir)
    (chart,) = step_charts(read_run(run_dir))
    assert chart.name == "step-32" and "0 units frozen" in chart.title
    found = boxes(chart.svg)
    assert len(found) == 2 * len(timed)
    above, below = found[: len(timed)], found[len(timed) :]
    assert max(float(row) for row, *_ in above) < min(float(row) for row, *_ in below)
    ends = [max(right for *_, right in some) - LEFT for some in (above, below)]
    assert ends[1] == pytest.approx(WIDTH - LEFT - 60, abs=1)
    assert ends[1] / ends[0] == pytest.approx(SLOWER, rel=2e-3)
    took = max(one.end for one in timed) * 1e3
    assert f"{took * SLOWER:.3g} ms" in chart.caption and f"{took:.3g} ms" in chart.caption
    page = build_report(run_dir).read_text()
    assert "as it ran" in page and re.search(r'<section id="step-32">', page)


def test_a_step_without_a_rank_or_taken_back_is_not_drawn_and_no_profile_leaves_the_measured_one(run_dir: Path) -> None:
    (run_dir / "profile.json").unlink()
    (chart,) = step_charts(read_run(run_dir))
    assert len(boxes(chart.svg)) == len(planned(run_dir)[1]) and "As planned" not in chart.caption
    trace(run_dir, 64, 1.0, ranks=3)
    assert step_charts(read_run(run_dir)) == []
    (run_dir / "traces.jsonl").unlink()
    trace(run_dir, 90, 1.0)
    assert step_charts(read_run(run_dir)) == [], "step 90 of lineage 0 was taken back"
    (run_dir / "traces.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match=r"traces\.jsonl holds a broken StepTrace"):
        read_run(run_dir)
