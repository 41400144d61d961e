"""Timelines of runs: whom the death of a whole run befalls (everybody whom a plan of its controllers names); checkpoints."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from frostline_contract.annotations import FENCE
from frostline_controller.cluster.local.backend import LocalBackend
from tests.chaos.acts import Act
from tests.chaos.cases import OTHER_ROOT
from tests.chaos.fixed import fixed_cases
from tests.chaos.plug.run_files import now_in
from tests.chaos.timeline import read_timeline, whom_it_befell


def plan(incarnation: int, *workers: str, leavers: tuple[str, ...] = ()) -> str:
    line = {"kind": "plan", "generation": {"incarnation": incarnation}, "placement": {"workers": workers}, "leavers": leavers}
    return json.dumps(line) + "\n"


@pytest.mark.parametrize("kind", ["kill_all", "kill_write"])
def test_members_of_earlier_plans_and_leavers_die_with_the_run_and_those_of_its_resume_do_not(kind: str, tmp_path: Path) -> None:
    plans = tmp_path / "plans.jsonl"
    written = plan(1, "a", "b") + plan(1, "a", leavers=("b",))
    plans.write_text(written + plan(1, "a", "c") + plan(2, "x", "y"))
    said = {"pods": [], "plans_bytes": len(written), "generation": "1.2"}
    assert whom_it_befell(Act(kind, 5), said, plans) == ("a", "b", "c"), (
        "c's plan was durable, and told of by the next controller"
    )
    assert whom_it_befell(Act(kind, 5), said | {"generation": "2.4"}, plans) == ("a", "b", "c", "x", "y"), (
        "a resumed controller's first plan was durable, and not told of"
    )


def test_a_fault_tells_the_generation_that_the_controller_has_made_durable(tmp_path: Path) -> None:
    """The plug cannot import the annotation's name; it must be the one that the controller writes."""
    assert now_in(tmp_path) == {"plans_bytes": 0, "generation": ""}
    LocalBackend(tmp_path / "cluster").patch_annotations({FENCE: "2.4"}, {})
    (tmp_path / "plans.jsonl").write_text(plan(1, "a"))
    assert now_in(tmp_path) == {"plans_bytes": len(plan(1, "a")), "generation": "2.4"}


def test_a_run_that_died_before_its_first_plan_befell_nobody(tmp_path: Path) -> None:
    plans = tmp_path / "plans.jsonl"
    plans.write_text(plan(2, "x"))
    assert whom_it_befell(Act("kill_all", 0), {"pods": [], "plans_bytes": 0, "generation": ""}, plans) == ()


def test_an_agents_death_befalls_its_pods_workers_in_the_newest_plan(tmp_path: Path) -> None:
    plans = tmp_path / "plans.jsonl"
    written = plan(1, "p/0", "q/0", "p/1")
    plans.write_text(written + plan(1, "p/2", "q/0", "p/3"))
    said = {"pods": ["p"], "plans_bytes": len(written)}
    assert whom_it_befell(Act("kill_agent", 5), said, plans) == ("p/0", "p/1")


def test_an_agents_death_befalls_workers_that_a_resume_has_begun_and_no_plan_has_named(tmp_path: Path) -> None:
    plans = tmp_path / "plans.jsonl"
    written = plan(1, "old/0", "old/1")
    plans.write_text(written + plan(2, "p/0", "p/1", "q/0") + plan(2, "q/0", "p/2"))
    said = {"pods": ["p"], "plans_bytes": len(written)}
    assert whom_it_befell(Act("kill_agent", 5), said, plans) == ("p/0", "p/1")
    assert whom_it_befell(Act("kill_agent", 5), said | {"pods": ["another"]}, plans) == ()


def test_the_checkpoints_of_a_root_outside_the_run_directory_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "0" / "0" / "step-5"
    (tmp_path / "run").mkdir()
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"lineage": 0, "step": 5}))
    case = fixed_cases()[0]
    assert read_timeline(tmp_path / "run", replace(case, checkpoint_uri=OTHER_ROOT), 8).checkpoints[0].step == 5
    assert read_timeline(tmp_path / "run", case, 8).checkpoints == ()
