"""`frostline plan` on real job files: sizes without torch, text and JSON, mistakes."""

import json
import math
from pathlib import Path

import pytest

from frostline_contract.job import apply_overrides, dump_job, load_job, parse_job
from frostline_contract.schedules import BUILT_IN
from frostline_contract.statistics import UnitProfile, WorkerProfile
from frostline_controller.cli.main import main
from frostline_controller.planner.model_size import model_size
from tests.in_time import fastest_of_three, within
from tests.unit.controller.synthetic_run import job_values

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(dump_job(parse_job(job_values())))
    return path


JOBS = sorted(file for file in EXAMPLES.rglob("*.yaml") if "clusters" not in file.parts)


@pytest.mark.parametrize("file", JOBS, ids=lambda path: path.stem)
def test_every_example_has_a_plan(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = load_job(file)
    own = job.placement.schedule
    if own not in ("auto", *BUILT_IN):
        pytest.skip(f"schedule {own} is the extension's, which tests/e2e/test_extension.py installs and plans with")
    if job.model.path and not Path(job.model.path).exists():
        pytest.skip(f"{job.model.path} is fetched by the example itself")
    assert main(["plan", "-f", str(file), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    placement = reported["plans"][0]["placement"]
    assert placement["stage_bounds"][-1] == reported["model"]["num_units"]
    assert len(placement["workers"]) == math.prod(placement["degrees"].values()) <= job.placement.workers
    assert reported["micro_batch_size"]["advised"] <= job.training.batch_size


def test_published_models_have_their_sizes() -> None:
    bert = model_size(load_job(EXAMPLES / "question_answering" / "squad_bert_large.yaml"))
    assert (bert.num_blocks, bert.hidden, bert.sequence, bert.outputs, bert.head_positions) == (24, 1024, 256, 2, 256)
    vit = model_size(load_job(EXAMPLES / "image_classification" / "imagenet_vit_b16.yaml"))
    # 14 x 14 patches and the class token.
    assert (vit.num_blocks, vit.hidden, vit.sequence, vit.outputs) == (12, 768, 197, 1000)
    gpt2 = model_size(load_job(EXAMPLES / "language_modeling" / "stdlib_gpt2.yaml"))
    assert gpt2.tied
    assert gpt2.outputs == 2048


def test_a_size_comes_from_a_local_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 384, "num_hidden_layers": 6, "vocab_size": 30522}))
    values = job_values(
        model={"family": "bert", "path": str(tmp_path)},
        task={"kind": "text_classification"},
        data={"source": "csv", "sequence_length": 64},
    )  # fmt: skip
    size = model_size(parse_job(values))
    assert (size.num_units, size.hidden, size.sequence) == (8, 384, 64)


def test_text_shows_the_picture_and_the_walk(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", str(job_file), "--devices", "2", "4", "--freeze-point", "3"]) == 0
    text = capsys.readouterr().out
    assert "8 units (embedding, 6 blocks of width 64, head), 17 tokens a sample" in text
    assert "2 devices: pp " in text
    assert "4 devices: pp " in text
    assert "[0:***#" in text
    assert text.count("as layers freeze:") == 2
    assert "micro_batch_size" in text


def test_a_measured_profile_replaces_the_analytic_one(job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unit = UnitProfile(
        forward_seconds=0.01, backward_seconds=0.02, parameter_bytes=1000, optimizer_bytes=2000, activation_bytes=9,
        output_bytes=9,
    )  # fmt: skip
    profile = tmp_path / "profile.json"
    profile.write_text(WorkerProfile(micro_batch_size=8, units=(unit,) * 5).model_dump_json())
    assert main(["plan", "-f", str(job_file), "--devices", "1", "--profile", str(profile), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["assumptions"]["unit_profile"] == "measured"
    assert reported["plans"][0]["placement"]["stage_bounds"] == [0, 5]
    # One worker computes 8 micro-batches of 5 units at 30 ms.
    assert reported["plans"][0]["cost"]["step_seconds"] == pytest.approx(8 * 5 * 0.03, rel=0.05)
    words = ["plan", "-f", str(job_file), "--devices", "1", "--profile", str(profile), "--json", "--set"]
    assert main([*words, "training.micro_batch_size=4"]) == 0
    scaled = json.loads(capsys.readouterr().out)["plans"][0]["cost"]["step_seconds"]
    assert scaled == pytest.approx(16 * 5 * 0.015, rel=0.05), "at another size a unit takes in proportion"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--set", "freeze.initial_units=9"],
            "freeze.initial_units is 9, and the model has 8 units: the head always learns; set it",
        ),
        (["--freeze-point", "8"], "--freeze-point is 8; it must be 0 to 7"),
        (["--profile", "/nowhere.json"], "--profile /nowhere.json: cannot be read (No such file or directory)"),
        (["--set", "model.config={}", "--set", "model.hub=some/model"], "model.config lacks hidden_size and num_hidden_layers"),
        (["--set", "placement.worker_memory_bytes=1000"], "memory"),
    ],
)
def test_a_mistake_is_one_clear_message(
    arguments: list[str], says: str, job_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "-f", str(job_file), *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error


@fastest_of_three
def test_two_hundred_units_on_1024_devices_take_seconds_at_most(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = [
        "model.config.num_hidden_layers=198",
        "placement.workers=1024",
        "training.batch_size=1024",
        "training.micro_batch_size=4",
    ]
    path = tmp_path / "job.yaml"
    path.write_text(dump_job(parse_job(apply_overrides(job_values(), [*settings, "training.reduction_leaves=256"]))))
    # The plan alone has a benchmark; this is the whole command with its freeze points and its advice, on a busy machine.
    with within(20.0, "the command"):
        assert main(["plan", "-f", str(path), "--devices", "1024", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["devices"] == 1024


def test_the_first_plan_has_the_depth_that_the_job_starts_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(dump_job(parse_job(job_values(placement={"workers": 4, "initial_pp_degree": 3}))))
    assert main(["plan", "-f", str(path), "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert plan["placement"]["degrees"]["pp"] == 3
    start, *later = plan["by_freeze_point"]
    assert (start["freeze_point"], start["degrees"]["pp"]) == (0, 3)
    assert min(step["degrees"]["pp"] for step in later) < 3, "once it has started, the depth is the planner's choice"


def test_the_first_plan_has_what_is_frozen_from_step_1(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The freeze points begin there; a deeper one can be asked for as ever; with `elastic.freeze` off nothing is frozen."""

    def reported(*arguments: str) -> dict:
        assert main(["plan", "-f", str(job_file), "--set", "freeze.initial_units=4", "--json", *arguments]) == 0
        (plan,) = json.loads(capsys.readouterr().out)["plans"]
        return plan

    plan = reported()
    assert plan["freeze_point"] == 4
    assert [step["freeze_point"] for step in plan["by_freeze_point"]] == [4, 5]
    assert all(not 0 < bound <= 4 for bound in plan["placement"]["stage_bounds"]), "the prefix rides in stage 0"
    assert reported("--freeze-point", "6")["freeze_point"] == 6
    assert reported("--set", "elastic.freeze=false")["freeze_point"] == 0


def test_the_grid_is_advised_for_language_modeling_alone(job_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", str(job_file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["token_cells"] is None
    language = ["plan", "-f", str(EXAMPLES / "language_modeling/stdlib_gpt2.yaml"), "--set", "training.reduction_leaves=1"]
    assert main([*language, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    own, pairs = reported["micro_batch_size"]["job"], reported["token_cells"]["candidates"]
    assert [one["token_cells"] for one in pairs if one["micro_batch_size"] == own] == [1, 2, 4]
    assert main([*language, "--set", "training.token_cells=2"]) == 0
    assert "token_cells   micro_batch_size  shape" in capsys.readouterr().out


def test_the_advised_pair_written_into_the_job_has_the_step_that_was_predicted(capsys: pytest.CaptureFixture[str]) -> None:
    training = {"batch_size": 8, "micro_batch_size": 1, "reduction_leaves": 1}
    words = ["plan", "-f", str(EXAMPLES / "language_modeling/stdlib_gpt2.yaml"), "--hardware", "gpu", "--teraflops", "0.1"]
    words += ["--set", "placement.workers=2", "--set", "placement.initial_pp_degree=null"]
    words += [word for name, value in training.items() for word in ("--set", f"training.{name}={value}")]
    assert main([*words, "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    advised = {"micro_batch_size": reported["micro_batch_size"]["advised"], "token_cells": reported["token_cells"]["advised"]}
    (pair,) = [one for one in reported["token_cells"]["candidates"] if advised.items() <= one.items()]
    assert pair["step_seconds"] < reported["plans"][0]["cost"]["step_seconds"] / 1.05
    assert advised["micro_batch_size"] > 1 < advised["token_cells"]
    assert main(words) == 0
    said = capsys.readouterr().out
    settings = [f"training.{name}={value}" for name, value in advised.items()]
    assert f"try --set {settings[0]} --set {settings[1]}, or in the job training: {{micro_batch_size: " in said
    assert main([*words, "--set", settings[0], "--set", settings[1], "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert "the job has" not in said and again["micro_batch_size"]["advised"] == advised["micro_batch_size"]
    step = again["plans"][0]["cost"]["step_seconds"]
    assert step == pytest.approx(pair["step_seconds"], rel=1e-9)


SHARED = ["--devices", "8", "--hardware", "gpu", "--teraflops", "6"]


@pytest.fixture
def one_micro_batch(tmp_path: Path) -> Path:
    """Write a job with one micro-batch: a pipeline has nothing to overlap, and replicas have nothing to share."""
    path = tmp_path / "one.yaml"
    job = job_values(
        model={"family": "vit", "config": {"hidden_size": 8192, "num_hidden_layers": 4, "image_size": 224, "patch_size": 16}},
        data={"source": "images", "path": "x", "image_size": 224},
        training={"steps": 10, "batch_size": 64, "micro_batch_size": 64, "reduction_leaves": 1, "precision": "float32"},
    )
    path.write_text(dump_job(parse_job(job)))
    return path


def test_what_tensors_would_give_is_advice_and_in_no_plan(one_micro_batch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["plan", "-f", str(one_micro_batch), *SHARED, "--set", "placement.worker_memory_bytes=80000000000"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "with tensors or state shared out: tp 8" in text
    assert "in a new run: training.tensor_tiles.inner 8 or more" in text
    assert "tensor columns " in text and "all together " in text
    assert main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plans"][0]
    assert plan["placement"]["degrees"].keys() == {"dp", "pp"}
    assert plan["sharing"]["best"]["degrees"] == {"dp": 1, "pp": 1, "tp_columns": 8}
    assert plan["sharing"]["best"]["step_seconds"] < plan["cost"]["step_seconds"] / 2
    rooms = {room["family"]: room["blocks"] for room in plan["sharing"]["largest"]}
    assert rooms["data parallel"] < rooms["tensor columns"] <= rooms["tensor columns and depth"] <= rooms["all together"]


DEEP = ["--set", "training.tensor_tiles={inner: 2, hidden: 4}", "--set", "placement.workers=8"]


def test_a_plan_with_a_depth_is_a_plan_of_the_run(one_micro_batch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two key-value heads would allow two columns; four levels make a group of all eight workers."""
    words = ["plan", "-f", str(one_micro_batch), *SHARED, *DEEP, "--set", "placement.tp_degree=2"]
    assert main([*words, "--set", "placement.tp_depth=4"]) == 0
    text = capsys.readouterr().out
    assert "tp_depth 4 x tp_columns 2 x pp 1 x dp 1" in text and "8 workers share each stage tile by tile" in text
    head, *rows = [line for line in text.splitlines() if line.startswith("  freeze point ") or "    no  " in line]
    assert rows and {row[: head.index("workers")].rstrip()[-4:] for row in rows} == {"dp 1"}, "shapes fit their column"
    assert main([*words, "--set", "placement.tp_depth=null", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)["plans"][0]
    assert plan["placement"]["degrees"] == {"dp": 1, "pp": 1, "tp_columns": 2, "tp_depth": 4}
    assert main([*words, "--set", "placement.tp_degree=1", "--json"]) == 0
    columns = json.loads(capsys.readouterr().out)["plans"][0]
    assert plan["cost"]["step_seconds"] < columns["cost"]["step_seconds"] / 2


def test_a_refusal_tells_what_would_fit(one_micro_batch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A block has 805 million parameters: 13 GB of weights, moments and gradients, and no pipeline cuts it."""
    words = [*SHARED, "--set", "placement.worker_memory_bytes=16000000000"]
    assert main(["plan", "-f", str(one_micro_batch), *words]) == 2
    said = capsys.readouterr().err
    assert "no placement of 8 workers fits their memory" in said
    assert "with tensors or state shared out: tp " in said and "nothing else fits" in said
