"""Values that cannot be are refused at `helm template`, with a text that names field and value and says what to do.

`model`: whether the job model refuses it by itself too, which it must wherever the mistake is the job's own.
"""

import json
from pathlib import Path

import pytest
import yaml

from frostline_contract.job import JobError, apply_overrides, parse_job
from frostline_contract.job.load import read_yaml
from tests.chart.rendering import DIGITS, HELMS, Json, Refused, render

CASES: list[Json] = yaml.safe_load(Path(__file__).with_name("bad_values.yaml").read_text())
each_case = pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])


@each_case
def test_refused_with_field_value_and_remedy(case: Json) -> None:
    with pytest.raises(Refused) as caught:
        render(*case["set"])
    text = str(caught.value)
    assert "nil pointer" not in text
    for part in case["says"]:
        assert part in text, text


@each_case
def test_the_model_and_the_chart_agree(case: Json) -> None:
    raw = apply_overrides(read_yaml(DIGITS.read_text()), [])
    for setting in case["set"]:
        path, _, value = setting.partition("=")
        place = raw
        *parents, last = path.split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = json.loads(value)
    try:
        parse_job(raw)
    except JobError:
        assert case["model"] == "refuses"
    else:
        assert case["model"] == "accepts"


@pytest.mark.parametrize("name", HELMS)
def test_all_mistakes_come_at_once_in_both_helms(name: str) -> None:
    with pytest.raises(Refused) as caught:
        render("training.steps=5", "training.reduction_leaves=6", 'checkpoint.uri="/a"', "kubernetes.trainer.gpus=3", name=name)
    text = str(caught.value)
    assert "4 mistake(s) in the values of release digits" in text
    assert all(part in text for part in ("training.epochs is 30", "reduction_leaves is 6", "checkpoint.uri", "trainer.gpus is 3"))


def test_checkpoints_may_lie_in_a_folder_of_the_runs_own() -> None:
    """A relative path is one below the run's folder, which is on the storage."""
    assert "checkpoint" in str(render('checkpoint.uri="kept"'))


@pytest.mark.parametrize("release", ["1st", "a" * 41, "my.run"])
def test_names_of_releases(release: str) -> None:
    with pytest.raises(Refused, match="the release's name is"):
        render(release=release)


@pytest.mark.parametrize("name", HELMS)
def test_without_a_job_helm_says_what_is_missing(name: str) -> None:
    with pytest.raises(Refused) as caught:
        render(values=(), name=name)
    assert all(part in str(caught.value) for part in ("family", "kind", "source"))


def test_a_job_file_beside_its_data_says_what_to_do() -> None:
    file = Path(DIGITS).parents[1] / "text_classification" / "reviews.yaml"
    with pytest.raises(Refused, match=r"3 mistake\(s\)"):
        render(values=(file,))
