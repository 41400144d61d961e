"""The job file: what is refused and in which words, overrides, paths, and what follows from its numbers."""

import copy
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from frostline_contract.job import (
    Job,
    JobError,
    apply_overrides,
    dump_job,
    job_digest,
    job_revision,
    load_job,
    parse_job,
    section_digests,
)
from frostline_contract.job.reference import job_reference
from frostline_contract.job.yaml_text import read_yaml

SMALL: dict[str, Any] = {
    "model": {"family": "vit", "config": {"hidden_size": 64}},
    "task": {"kind": "image_classification"},
    "data": {"source": "digits"},
    "training": {"epochs": 2, "batch_size": 64, "micro_batch_size": 8},
}

BAD_INPUT = [
    ("unknown key, near a known one", ["training.batchsize=3"], ["training.batchsize: unknown key", "did you mean batch_size?"]),
    ("unknown key, near nothing", ["task.zzz=3"], ["task.zzz: unknown key; known: kind, metric, num_labels"]),
    ("unknown section", ["trainig={}"], ["trainig: unknown key; did you mean training?"]),
    ("unknown nested key", ["freeze.rails.patienc=3"], ["freeze.rails.patienc: unknown key; did you mean patience?"]),
    ("wrong type", ["training.batch_size=many"], ["training.batch_size is 'many'", "valid integer"]),
    ("a fraction where a count belongs", ["training.batch_size=64.5"], ["training.batch_size is 64.5", "valid integer"]),
    ("out of range", ["training.optimizer.learning_rate=0"], ["training.optimizer.learning_rate is 0", "greater than 0"]),
    ("unknown task", ["task.kind=dancing"], ["task.kind is 'dancing'", "'image_classification'"]),
    ("neither epochs nor steps", ["training.epochs=null"], ["training", "epochs is None and steps is None; give exactly one"]),
    ("epochs and steps", ["training.steps=5"], ["epochs is 2.0 and steps is 5; give exactly one of them"]),
    ("leaves no power of two", ["training.reduction_leaves=6"], ["reduction_leaves is 6; it must be a power of two"]),
    (
        "batch smaller than a micro-batch",
        ["training.batch_size=4"],
        ["batch_size 4 is smaller than micro_batch_size 8; lower micro_batch_size"],
    ),
    (
        "fewer micro-batches than leaves",
        ["training.batch_size=24"],
        ["3 micro-batches (batch_size 24 / micro_batch_size 8)", "lower reduction_leaves to a power of two <= 3"],
    ),
    ("short interval", ["freeze.interval_steps=1"], ["freeze.interval_steps is 1", "greater than or equal to 2"]),
    (
        "interval within the lag",
        ["freeze.interval_steps=3"],
        ["freeze.interval_steps is 3", "an interval must be longer than the lag"],
    ),
    ("name", ["name=Big Run"], ["name is 'Big Run'", "pattern"]),
    ("negative seed", ["seed=-1"], ["seed is -1"]),
    ("bad fault", ["faults=[{kind: kill_worker}]"], ["faults.0.step: missing; add it"]),
    (
        "a fault's phase",
        ["faults=[{kind: kill_worker, step: 1, phase: forward}]"],
        ["faults.0", "phase is 'forward' for kill_worker; it must be one of load, schedule, exchange"],
    ),
    (
        "a controller's phase",
        ["faults=[{kind: kill_controller, step: 1, phase: vote}]"],
        ["phase is 'vote' for kill_controller; it must be one of step, planned, announced, recovering"],
    ),
    (
        "a phase where there is no choice",
        ["faults=[{kind: late_commit, step: 1, phase: vote}]"],
        ["phase is 'vote' for late_commit, which has a place of its own; leave phase out"],
    ),
    ("spare workers", ["placement.spare_workers=-1"], ["placement.spare_workers is -1", "greater than or equal to 0"]),
    (
        "a fault's pod beyond the spare ones",
        ["placement.spare_workers=1", "faults=[{kind: stop, step: 1, worker: 5}]"],
        ["faults.0.worker is 5; the job's pods are 0 to 4"],
    ),
    ("a fault's pod", ["faults=[{kind: stop, step: 1, worker: 4}]"], ["faults.0.worker is 4; the job's pods are 0 to 3"]),
]


@pytest.mark.parametrize(("overrides", "words"), [case[1:] for case in BAD_INPUT], ids=[case[0] for case in BAD_INPUT])
def test_bad_input_is_named_with_value_and_remedy(overrides: list[str], words: list[str]) -> None:
    text = mistakes_of(overrides)
    assert text.startswith("my.yaml: 1 mistake(s)")
    assert [part for part in words if part not in text] == [], text


def mistakes_of(overrides: list[str]) -> str:
    """Return what is said of a job with these settings, which has mistakes."""
    with pytest.raises(JobError) as caught:
        parse_job(apply_overrides(SMALL, overrides), "my.yaml")
    return str(caught.value)


def test_all_mistakes_come_at_once() -> None:
    with pytest.raises(JobError) as caught:
        parse_job({"model": {"family": "vit", "colour": 1}, "task": {"kind": "x"}, "data": {}})
    text = str(caught.value)
    assert "4 mistake(s)" in text
    assert all(part in text for part in ("model.colour", "task.kind", "data.source: missing", "training: missing; add it")), text


@pytest.mark.parametrize("section", ["model", "task", "data", "training"])
def test_required_sections(section: str) -> None:
    raw = {key: value for key, value in SMALL.items() if key != section}
    with pytest.raises(JobError, match=f"{section}: missing; add it"):
        parse_job(raw)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [1", "no valid YAML"),
        ("- a\n- b\n", "holds list, expected a mapping"),
        ("", "holds NoneType, expected a mapping"),
        ("!!python/object/apply:os.getcwd []\n", "no valid YAML"),
    ],
)
def test_files_that_are_no_jobs(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(content)
    with pytest.raises(JobError, match=words):
        load_job(file)


def test_a_missing_file_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"nowhere\.yaml: cannot be read \(No such file or directory\); give a job file with -f"):
        load_job(tmp_path / "nowhere.yaml")


def test_overrides_are_yaml_and_leave_the_original_alone() -> None:
    before = copy.deepcopy(SMALL)
    raw = apply_overrides(SMALL, ["training.batch_size=128", "model.config.patch=[1, 2]", "elastic.cache=false", "name=a=b"])
    assert before == SMALL
    assert (raw["training"]["batch_size"], raw["model"]["config"]["patch"], raw["name"]) == (128, [1, 2], "a=b")
    assert raw["elastic"] == {"cache": False}


@pytest.mark.parametrize(
    ("text", "words"), [("training", "write it as section.field=value"), ("=3", "write it as"), ("seed.a=1", None)]
)
def test_overrides_that_cannot_be(text: str, words: str | None) -> None:
    with pytest.raises(JobError, match=words or "seed is no section"):
        apply_overrides({**SMALL, "seed": 3}, [text])


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "vocabulary").mkdir()
    raw = apply_overrides(SMALL, ["model.path=../weights", "data.path=train", "data.tokenizer=vocabulary"])
    file = tmp_path / "job.yaml"
    file.write_text(dump_job(parse_job(raw)))
    job = load_job(file)
    assert job.model.path == str(tmp_path.parent / "weights")
    assert (job.data.path, job.data.tokenizer) == (str(tmp_path / "train"), str(tmp_path / "vocabulary"))
    file.write_text(dump_job(parse_job(apply_overrides(SMALL, ["data.tokenizer=bert-base-uncased"]))))
    assert load_job(file).data.tokenizer == "bert-base-uncased"


def test_a_dumped_job_reads_back_and_its_digest_sees_every_field(tmp_path: Path) -> None:
    job = parse_job(apply_overrides(SMALL, ["freeze.policy.points={3: 2}", "reshapes=[{step: 4, pp_degree: 2, dp_degree: 2}]"]))
    file = tmp_path / "job.yaml"
    file.write_text(dump_job(job))
    assert load_job(file) == job
    assert job_digest(load_job(file)) == job_digest(job)
    assert job_digest(load_job(file, ["training.clip_norm=3"])) != job_digest(job)
    changed = load_job(file, ["cache.prefetch_steps=3"])
    assert job_digest(changed) == job_digest(job) and job_revision(changed) != job_revision(job)


def test_a_field_that_came_later_is_in_no_digest_at_its_default() -> None:
    """A run that was begun without `training.state_ranges` is the same run; one that sets it is another."""
    plain, cut = parse_job(SMALL), parse_job(apply_overrides(SMALL, ["training.state_ranges=2"]))
    assert plain.training.state_ranges == 1
    assert parse_job(apply_overrides(SMALL, ["training.state_ranges=1"])) == plain
    for digest in (job_digest, job_revision):
        assert digest(cut) != digest(plain)
    differing = {name for name, value in section_digests(cut).items() if section_digests(plain)[name] != value}
    assert differing == {"fields", "training"}
    with pytest.raises(JobError, match=r"training\.state_ranges is 0"):
        parse_job(apply_overrides(SMALL, ["training.state_ranges=0"]))


def test_a_section_that_came_later_and_may_change_is_in_no_digest_that_must_not() -> None:
    """`cluster`: an older run is the same run, and a price may be given, and changed, while it goes on."""
    plain, priced = parse_job(SMALL), parse_job(apply_overrides(SMALL, ["cluster.price_per_worker_hour=2.5"]))
    assert job_digest(priced) == job_digest(plain) and section_digests(priced) == section_digests(plain)
    assert "cluster" not in section_digests(plain)
    assert job_revision(priced) != job_revision(plain)


def test_every_field_is_documented_and_says_whether_it_may_change() -> None:
    missing, pending = [], [Job]
    while pending:
        section = pending.pop()
        for name, field in section.model_fields.items():
            extra = field.json_schema_extra
            if not field.description or not isinstance(extra, dict) or extra.get("change") not in ("fixed", "live"):
                missing.append(f"{section.__name__}.{name}")
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                pending.append(field.annotation)
    assert missing == []


def test_the_reference_names_every_section_and_field() -> None:
    text = job_reference()
    for heading in ("## the job", "## training", "## training.optimizer", "## freeze.rails", "## reshapes[]", "## faults[]"):
        assert heading in text
    assert "| `micro_batch_size` | integer, >= 1 or `auto` | 8 | fixed |" in text


def test_a_job_cannot_be_changed_after_loading() -> None:
    job = parse_job(SMALL)
    with pytest.raises(ValueError, match="frozen"):
        job.training.batch_size = 3  # type: ignore[misc]
    assert job.training.batch_size == 64


def test_numbers_that_follow() -> None:
    job = parse_job(SMALL)
    assert (job.training.num_microbatches, job.total_steps(22), job.interval_steps(22)) == (8, 44, 22)
    assert parse_job(apply_overrides(SMALL, ["training.batch_size=65"])).training.num_microbatches == 9
    assert parse_job(apply_overrides(SMALL, ["training.epochs=0.001"])).total_steps(22) == 1
    assert parse_job(apply_overrides(SMALL, ["decisions.lag_steps=5"])).interval_steps(3) == 6
    assert parse_job(apply_overrides(SMALL, ["freeze.interval_steps=9"])).interval_steps(3) == 9


@pytest.mark.parametrize("text", ["1e-12", "1E5", "-2.5e3", "+1.e4", ".5e-3", "1.0e-12"])
def test_a_number_with_an_exponent_is_a_number(text):
    """As Hugging Face's configs and the Python API write them; YAML 1.1 has texts for those without a point."""
    assert read_yaml(f"layer_norm_eps: {text}") == {"layer_norm_eps": float(text)}
    config = parse_job(apply_overrides(SMALL, [f"model.config.layer_norm_eps={text}"])).model.config
    assert config["layer_norm_eps"] == float(text)


@pytest.mark.parametrize("text", ["1e", "e5", "1e5a", "12e-", "1-e5", "abcdef1"])
def test_a_text_with_an_e_stays_a_text(text):
    assert read_yaml(text) == text


def test_off_is_a_word_in_a_job_file(tmp_path):
    file = tmp_path / "job.yaml"
    file.write_text(
        "model: {family: vit}\ntask: {kind: image_classification}\ntraining: {epochs: 1}\n"
        "data: {source: digits, augmentation: {mode: off}}\nfreeze: {rails: {off: [guard]}}\n"
    )
    job = load_job(file, ["elastic.cache=false", "data.augmentation.mode=off"])
    assert (job.data.augmentation.mode, job.freeze.rails.off, job.elastic.cache) == ("off", ("guard",), False)
