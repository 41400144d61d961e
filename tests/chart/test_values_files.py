"""The generated files, and that a job keeps its meaning on its way through Helm's merge into the ConfigMap."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from frostline_contract.job import Job, apply_overrides, dump_job, load_job, parse_job
from frostline_contract.job.load import read_yaml
from frostline_contract.job.values_schema import boolean_words, values_file, values_schema
from tests.chart.rendering import CHART, DIGITS, EXAMPLES, HELMS, Json, Release, render

ON_A_CLUSTER = sorted(
    file
    for file in EXAMPLES.rglob("*.yaml")
    if not {".cache", "clusters"} & set(file.parts) and ".cache/" not in file.read_text() and "cut_node" not in file.read_text()
)
"""Examples whose data every pod can reach."""


def job_of(release: Release, name: str = "digits") -> Job:
    """As the controller reads it; any YAML reader and any JSON reader must see the same."""
    text = release.get("ConfigMap", f"{name}-job")["data"]["job.yaml"]
    assert yaml.safe_load(text) == json.loads(text) == read_yaml(text)
    return parse_job(json.loads(text))


def test_the_generated_files_are_up_to_date() -> None:
    assert (CHART / "values.yaml").read_text() == values_file()
    assert json.loads((CHART / "values.schema.json").read_text()) == values_schema()


@pytest.mark.parametrize("what", ["schema", "values"])
def test_the_generator_prints_the_files(what: str) -> None:
    command = [sys.executable, "-m", "frostline_contract.job.values_schema", what]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == (CHART / ("values.schema.json" if what == "schema" else "values.yaml")).read_text()


def test_the_generator_says_how_it_is_called() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "frostline_contract.job.values_schema"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "usage" in done.stderr


def test_the_defaults_are_the_models() -> None:
    given = read_yaml((CHART / "values.yaml").read_text())
    job = parse_job(
        apply_overrides(given, ["model.family=vit", "task.kind=language_modeling", "data.source=x", "training.epochs=1"])
    )
    bare = {"model": {"family": "vit"}, "task": {"kind": "language_modeling"}, "data": {"source": "x"}, "training": {"epochs": 1}}
    assert job == parse_job(bare)


def test_every_field_is_in_both_files() -> None:
    text, schema = (CHART / "values.yaml").read_text(), values_schema()
    pending: list[tuple[type[BaseModel], Json]] = [(Job, schema)]
    while pending:
        section, node = pending.pop()
        for name, field in section.model_fields.items():
            assert name in node["properties"], f"{section.__name__}.{name}"
            assert f"{name}:" in text.replace("'", "")
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                pending.append((field.annotation, node["properties"][name]))


def test_unknown_keys_are_refused_everywhere_but_in_free_maps() -> None:
    free = []

    def look(node: Any, path: str) -> None:
        if isinstance(node, list):
            for one in node:
                look(one, path)
        if not isinstance(node, dict):
            return
        if node.get("type") == "object" and node.get("additionalProperties") is not False:
            free.append(path)
        for key, value in node.get("properties", {}).items():
            look(value, f"{path}.{key}".lstrip("."))
        for key in ("items", "anyOf"):
            look(node.get(key), path)

    schema = values_schema()
    look(schema, "")
    roles = ("cache_server", "controller", "redis", "trainer")
    maps = ("annotations", "env", "labels", "limits", "node_selector", "requests", "secret_env")
    assert sorted(free) == sorted([
        "data.columns", "freeze.policy.points", "freeze.policy.stairs", "global", "model.config", "kubernetes.monitoring.labels",
        "kubernetes.volumes.source", "kubernetes.network_policy.metrics_from", "kubernetes.network_policy.trainer_egress",
        *(f"kubernetes.{role}.{name}" for role in roles for name in maps),
    ])  # fmt: skip
    jsonschema.Draft7Validator.check_schema(schema)
    assert "$ref" not in json.dumps(schema)


@pytest.mark.parametrize("file", ON_A_CLUSTER, ids=[file.stem for file in ON_A_CLUSTER])
def test_every_example_arrives_as_it_was(file: Path) -> None:
    assert len(ON_A_CLUSTER) > 10
    job = job_of(render(values=(file,), release="other"), "other")
    assert job.name == "other"
    assert job.model_copy(update={"name": "x"}) == load_job(file).model_copy(update={"name": "x"})


@pytest.mark.parametrize("name", HELMS)
def test_a_resolved_job_with_all_its_nulls_arrives_as_it_was(name: str, tmp_path: Path) -> None:
    raw = apply_overrides(
        read_yaml(DIGITS.read_text()),
        ["training.clip_norm=null", "training.optimizer.epsilon=1.0e-12", "model.config.layer_norm_eps=5.0e-05",
         "model.config.wide=1.0e+25", "model.config.text=1e-5 and\n  2e-5", "freeze.policy.points={3: 2, 6: 4}",
         "cache.memory_bytes=412316860416", "seed=9007199254740991"],
    )  # fmt: skip
    job = parse_job(raw)
    file = tmp_path / "job.yaml"
    file.write_text(dump_job(job))
    arrived = job_of(render(name=name, values=(file,)))
    assert arrived == job
    assert arrived.training.clip_norm is None
    assert isinstance(arrived.model.config["layer_norm_eps"], float)


@pytest.mark.parametrize("name", HELMS)
def test_off_is_a_word_to_us_also_where_helm_takes_it_for_false(name: str, tmp_path: Path) -> None:
    assert boolean_words() == ["data.augmentation.mode=off", "freeze.rails.off"]
    file = tmp_path / "job.yaml"
    text = DIGITS.read_text().replace("  source: digits\n", "  source: digits\n  augmentation: {mode: off}\n")
    file.write_text(text.replace("freeze:\n", "freeze:\n  rails:\n    off: [guard, warmup]\n"))
    job = job_of(render(name=name, values=(file,)))
    assert job == load_job(file)
    assert (job.data.augmentation.mode, job.freeze.rails.off) == ("off", ("guard", "warmup"))


def test_what_helm_adds_does_not_reach_the_job() -> None:
    assert job_of(render('global={"imageRegistry":"example.com"}')) == load_job(DIGITS)
