"""Values from Python code: what a job file can hold arrives as it is, and all else is a mistake in the command's words."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from frostline_contract.job.yaml_text import read_yaml
from frostline_controller import api
from frostline_controller.python_values import plain_value, settings_of, whole_numbers
from frostline_controller.sweep.grid import checked_axis
from frostline_controller.sweep.planning import planned_runs
from tests.unit.controller.synthetic_run import job_values


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (Path("a/b"), "a/b"),
        (np.int64(3), 3),
        (np.float64(1e-12), 1e-12),
        (np.arange(2), [0, 1]),
        ((Path("x"), np.bool_(True), None), ["x", True, None]),
        ({1: np.float32(0.5), "b": (2,)}, {"1": 0.5, "b": [2]}),
        ("snow ❄ and 🧊", "snow ❄ and 🧊"),
        ("\x85\u2028\ufeff\x7f\ttab\n", "\x85\u2028\ufeff\x7f\ttab\n"),
        ("\\ud83d\\ude00", "\\ud83d\\ude00"),
    ],
)
def test_a_value_arrives_as_a_job_file_has_it(given: Any, plain: Any) -> None:
    assert plain_value("data.path", given) == plain
    (setting,) = settings_of({"data.path": given})
    assert read_yaml(setting.removeprefix("data.path=")) == plain


def test_values_of_python_reach_the_job(tmp_path: Path) -> None:
    found = api.plan(job_values(), devices=np.array([2, 4]), overrides={"placement.workers": np.int64(3), "model.path": None})
    assert [plan["devices"] for plan in found["plans"]] == [2, 4]
    assert checked_axis("seed", np.arange(3)).values == (0, 1, 2)
    assert checked_axis("data.path", [Path("🧊"), Path("🧊")]).values == ("🧊",)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda job: api.plan(job, overrides={"data.path": object}), "data.path: <class 'object'> is no value of a job file"),
        (lambda job: api.plan(job, devices=4), r"devices: 4 is no list of values; write \[4\]"),
        (lambda job: api.plan(job, devices=[0]), "devices: 0 is no whole number from 1 on"),
        (lambda job: api.plan(job, devices=[2.5]), "devices: 2.5 is no whole number from 1 on"),
        (lambda job: api.plan(job, freeze_point=-1), "freeze_point: -1 is no whole number from 0 on"),
        (lambda job: api.sweep(job, {"seed": 3}), r"--vary seed: 3 is no list of values; write \[3\]"),
        (lambda job: api.sweep(job, {"seed": "12"}), r"--vary seed: '12' is no list of values; write \['12'\]"),
        (lambda job: api.sweep(job, {"seed": [{1, 2}]}), r"--vary seed: \{1, 2\} is no value of a job file"),
        (lambda job: api.sweep(job, {"seed": [1]}, side_by_side=0), "--side-by-side 0: no run would ever start; give 1 or more"),
        (lambda job: api.sweep(job, {"seed": [1]}, workers=2, side_by_side=0), "--side-by-side 0: no run would ever start"),
    ],
)
def test_a_value_that_is_none_is_a_mistake(call: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(api.JobMistake, match=says):
        call(job_values())
    assert list(tmp_path.iterdir()) == []


def test_steps_to_verify_are_whole_numbers() -> None:
    assert whole_numbers("steps", range(3)) == [0, 1, 2]


def test_a_sweep_takes_characters_of_every_plane(tmp_path: Path) -> None:
    (file := tmp_path / "job.in").write_text(yaml.safe_dump(job_values()))
    runs = planned_runs(str(file), [], [checked_axis("data.path", ["🧊", "❄"])], None, 1)
    assert [run.values["data.path"] for run in runs] == [str(tmp_path / "🧊"), str(tmp_path / "❄")]
