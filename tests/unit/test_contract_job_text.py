"""A job that is written as YAML is read as the same job, whatever its texts look like."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline_contract.job import apply_overrides, dump_job, load_job, parse_job, read_yaml, write_yaml

SMALL: dict[str, Any] = {
    "model": {"family": "vit", "config": {"hidden_size": 64}},
    "task": {"kind": "image_classification"},
    "data": {"source": "digits"},
    "training": {"epochs": 2, "batch_size": 64, "micro_batch_size": 8},
}
NUMBERS_IN_SOME_YAML = st.from_regex(r"[-+]?[0-9_]*\.?[0-9_]*([eE][-+]?[0-9]+)?", fullmatch=True)
WORDS = st.sampled_from(
    ["off", "No", "y", "null", "~", "", "0x1f", "0o7", "1:30", "2020-01-01", "<<", "=", "inf", ".nan", "-", "a: b"]
)
CHARACTERS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
TEXTS = NUMBERS_IN_SOME_YAML | WORDS | CHARACTERS


@given(st.recursive(TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner), max_leaves=10))
def test_texts_of_any_content_are_read_as_they_were_written(value: Any) -> None:
    assert read_yaml(write_yaml(value)) == value


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.none())
def test_numbers_are_read_as_they_were_written(value: Any) -> None:
    found = read_yaml(write_yaml([value]))
    assert (found, type(found[0])) == ([value], type(value))


@pytest.mark.parametrize("text", ["1e3", "1234e56", "0", "12", "off"])
def test_a_job_whose_texts_look_like_numbers_is_read_again(text: str, tmp_path: Path) -> None:
    values = copy.deepcopy(SMALL) | {"name": text}
    values["model"]["revision"] = text
    values["model"]["config"][text] = text
    job = parse_job(values)
    (tmp_path / "job.yaml").write_text(dump_job(job))
    assert load_job(tmp_path / "job.yaml") == job


@given(CHARACTERS)
def test_a_setting_that_json_wrote_is_the_text_that_was_given(text: str) -> None:
    assert apply_overrides({}, [f"data.path={json.dumps(text)}"]) == {"data": {"path": text}}
