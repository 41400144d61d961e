"""A sweep without training: the varied fields, the runs that follow, the contents of sweep.json, table and page."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from frostline_contract.job import Job, load_job
from frostline_contract.job.automatic import Settled
from frostline_contract.run_status import RunStatus
from frostline_controller import api
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.errors import UserMistake
from frostline_controller.report.figures import read_figures
from frostline_controller.sweep.directory import SweepDirectory, SweepState
from frostline_controller.sweep.grid import combinations, parse_axis
from frostline_controller.sweep.page import page
from frostline_controller.sweep.planning import made_sweep, planned_runs
from frostline_controller.sweep.requests import NewSweep, carry_out
from frostline_controller.sweep.running import RunningRun, as_it_stands
from frostline_controller.sweep.wording import final_words, table_of, table_text, values_in_words
from tests.unit.controller.synthetic_run import job_values, record, write_run
from tests.unit.controller.test_cli import end_of

RATE = "training.optimizer.learning_rate"


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    path = tmp_path / "job.in"
    path.write_text(yaml.safe_dump(job_values()))
    return str(path)


def made(
    job_file: str, folder: Path, *vary: str, workers: int | None = None, side_by_side: int = 1
) -> tuple[SweepDirectory, SweepState]:
    axes = [parse_axis(text) for text in vary]
    runs = planned_runs(job_file, [], axes, workers, side_by_side)
    folder.mkdir()
    return made_sweep(runs, axes, name="digits", folder=folder, job_file=job_file, workers=workers, side_by_side=side_by_side)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a.b=1,2,x", (1, 2, "x")),
        ("a=0-3", (0, 1, 2, 3)),
        ("a=0-2,7", (0, 1, 2, 7)),
        ("a=2,2,1", (2, 1)),
        ("a='0-3'", ("0-3",)),
        ("a=[x, 'y,z', 0-3]", ("x", "y,z", "0-3")),
        ("a=true,null", (True, None)),
    ],
)
def test_values_are_lists_ranges_and_yaml(text: str, values: tuple[Any, ...]) -> None:
    assert parse_axis(text).values == values


def test_the_last_field_changes_fastest() -> None:
    assert combinations([parse_axis("a=1,2"), parse_axis("b=x,y")]) == [
        {"a": 1, "b": "x"}, {"a": 1, "b": "y"}, {"a": 2, "b": "x"}, {"a": 2, "b": "y"}
    ]  # fmt: skip


def test_each_run_has_its_own_resolved_job(job_file: str, tmp_path: Path) -> None:
    places, state = made(job_file, tmp_path / "sweep", f"{RATE}=3e-5,1e-4", "seed=0-1", workers=4, side_by_side=2)
    assert [run.values for run in state.runs][:2] == [{RATE: 3e-5, "seed": 0}, {RATE: 3e-5, "seed": 1}]
    assert [run.name for run in state.runs][2:] == ["3-learning_rate-0.0001-seed-0", "4-learning_rate-0.0001-seed-1"]
    assert values_in_words(state.runs[0]) == "learning_rate 3e-05, seed 0"
    jobs = [load_job(places.job_of(run)) for run in state.runs]
    alone = load_job(job_file, [f"{RATE}=1e-4", "seed=1", "placement.workers=2"])
    assert jobs[3] == alone.model_copy(update={"name": "digits-4"}), "the job of the same run alone, but for its name"
    assert (state.workers, state.shares_cache) == (4, True)
    assert places.read() == state


def test_workers_are_the_runs_own_where_they_say_them(job_file: str, tmp_path: Path) -> None:
    _, state = made(job_file, tmp_path / "sweep", "placement.workers=1,3", workers=4, side_by_side=2)
    assert ([run.workers for run in state.runs], state.workers) == ([1, 3], 4)
    _, state = made(job_file, tmp_path / "own", "seed=1,2", side_by_side=2)
    assert ([run.workers for run in state.runs], state.workers) == ([4, 4], None)
    with pytest.raises(UserMistake, match="raise it"):
        planned_runs(job_file, [], [parse_axis("placement.workers=1,5")], 4, 1)


def open_job(folder: Path, **training: Any) -> str:
    """Write a job that leaves fields open, with changes of its training section."""
    values = job_values()
    values["training"] |= {"reduction_leaves": "auto", **training}
    (path := folder / "open.in").write_text(yaml.safe_dump(values))
    return str(path)


@pytest.mark.parametrize(
    ("training", "vary", "settled"),
    [
        ({"micro_batch_size": "auto"}, "training.micro_batch_size=8,16", {(8, 2), (16, 2)}),
        ({"micro_batch_size": "auto"}, "seed=0-1", {(4, 2)}),
        ({"micro_batch_size": 8, "batch_size": 4}, "training.batch_size=64,128", {(8, 2)}),
    ],
)
def test_what_the_job_leaves_open_and_no_axis_varies_is_settled_once(
    training: dict[str, Any], vary: str, settled: set[tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, made_in = [], []

    def settle(job: Job) -> Settled:
        measured.append(job)
        return Settled(micro_batch_size=4, reduction_leaves=2)

    monkeypatch.setattr("frostline_controller.sweep.requests.settled_here", settle)
    monkeypatch.setattr("frostline_controller.sweep.requests._run", lambda places, *given: made_in.append(places) or 0)
    file, out = open_job(tmp_path, **training), str(tmp_path / "sweep")
    assert carry_out(NewSweep(job_file=file, axes=(parse_axis(vary),), out=out, quiet=True)) == exit_codes.DONE
    jobs = [load_job(path) for path in sorted(made_in[0].jobs.iterdir())]
    assert {(job.training.micro_batch_size, job.training.reduction_leaves) for job in jobs} == settled
    assert [job.name for job in measured] == [jobs[0].name]


@pytest.mark.parametrize(
    ("vary", "settled_by"),
    [
        (("placement.workers=1,4,2",), (4, 64)),
        (("training.batch_size=64,8",), (2, 8)),
        (("training.batch_size=64,8,16", "placement.workers=1,4"), (4, 8)),
    ],
)
def test_what_is_settled_once_suits_the_most_workers_and_the_smallest_batch(
    vary: tuple[str, ...], settled_by: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the first run's leaves four workers could not be replicas; its micro-batch may exceed another run's batch."""
    measured: list[tuple[int, int]] = []

    def settle(job: Job) -> Settled:
        measured.append((job.placement.workers, job.training.batch_size))
        return Settled(micro_batch_size=4, reduction_leaves=2)

    monkeypatch.setattr("frostline_controller.sweep.requests.settled_here", settle)
    monkeypatch.setattr("frostline_controller.sweep.requests._run", lambda *given: exit_codes.DONE)
    file, out = open_job(tmp_path, micro_batch_size="auto"), str(tmp_path / "sweep")
    axes = tuple(parse_axis(text) for text in (*vary, "seed=0-1"))
    overrides = () if any("workers" in text for text in vary) else ("placement.workers=2",)
    assert carry_out(NewSweep(job_file=file, overrides=overrides, axes=axes, out=out, quiet=True)) == exit_codes.DONE
    assert measured == [settled_by]


def test_a_damaged_file_of_one_run_is_shown_and_ends_no_other(
    job_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places, state = made(job_file, tmp_path / "sweep", "seed=0,1")
    write_run(folder := places.run_of(state.runs[0]).path, finished=False)
    (folder / "metrics.jsonl").write_text("torn\n")
    monkeypatch.setattr("frostline_controller.sweep.running.in_a_process", lambda *given, **named: SimpleNamespace(running=True))
    monkeypatch.setattr("frostline_controller.sweep.running.PLAIN_SECONDS", 0.0)
    one = RunningRun(state.runs[0], places, False, SimpleNamespace(shared_cache=None, environment={}))  # type: ignore[arg-type]
    assert one.news().startswith(f"progress unknown: {folder / 'metrics.jsonl'}, after byte 0: no JSON")
    (folder / "metrics.jsonl").open("a").write(json.dumps(record(1, 0).model_dump()) + "\n")
    assert "step 1" in one.news(), "the lines after the damaged one are read"


def test_a_sweep_measures_only_what_is_open_and_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frostline_controller.sweep.requests.settled_here", lambda job: pytest.fail("it was measured"))
    monkeypatch.setattr("frostline_controller.sweep.requests._run", lambda *given: exit_codes.DONE)
    file, out = open_job(tmp_path), str(tmp_path / "sweep")
    varied = NewSweep(job_file=file, axes=(parse_axis("training.reduction_leaves=1,2"),), out=out)
    assert carry_out(varied) == exit_codes.DONE
    with pytest.raises(UserMistake, match="did you mean seed"):
        carry_out(NewSweep(job_file=file, axes=(parse_axis("sed=1,2"),), out=out))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--workers", "2"), "--workers 2: the run with placement.workers=3 needs 3; raise it"),
        (("--workers", "3", "--side-by-side", "4"), "--workers 3: too few for --side-by-side 4"),
        (("--side-by-side", "5"), "--workers 4: too few for --side-by-side 5"),
    ],
)
def test_a_sweep_goes_on_only_with_workers_for_its_runs(
    words: tuple[str, ...], says: str, job_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("frostline_controller.sweep.requests.SweepRunner", lambda *given: pytest.fail("it was started"))
    places, state = made(job_file, tmp_path / "sweep", "placement.workers=4,1,3", workers=4, side_by_side=2)
    write_run(places.run_of(state.runs[0]).path)  # has completed: its four workers are not needed any more
    before = places.state.read_text()
    code, _, error = end_of(capsys, "sweep", "--resume", str(places.path), *words)
    assert (code, says in error) == (exit_codes.USER_MISTAKE, True), error
    assert places.state.read_text() == before


def test_what_a_run_has_come_to_is_read_from_its_directory(job_file: str, tmp_path: Path) -> None:
    """It is not read from sweep.json, which a killed sweep could not write any more."""
    places, state = made(job_file, tmp_path / "sweep", "seed=0-3")
    done, stopped, failed, waiting = state.runs
    write_run(places.run_of(done).path)
    write_run(places.run_of(stopped).path, finished=False)
    write_run(places.run_of(failed).path, finished=False)
    failed = replace(failed, exit_code=exit_codes.FAILED, message="out of memory")
    found = [as_it_stands(run, places.run_of(run)) for run in (done, stopped, failed, waiting)]
    assert [run.state for run in found] == [RunStatus.COMPLETED, RunStatus.SUSPENDED, RunStatus.FAILED, RunStatus.WAITING]
    assert found[0].figures == json.loads(json.dumps(read_figures(places.run_of(done).path).as_json()))
    assert [run.over for run in found] == [True, False, True, False]
    assert found[2].message == "out of memory"
    assert final_words(found[0]).startswith("completed in 42.5 s; accuracy 0.9611, loss 0.2104; cache hits ")


def test_table_and_page_show_every_run(job_file: str, tmp_path: Path) -> None:
    places, state = made(job_file, tmp_path / "sweep", f"{RATE}=3e-5,1e-3", "seed=0,1")
    for run in state.runs[:2]:
        write_run(places.run_of(run).path)
    (places.run_of(state.runs[0]).report).write_text("drawn")
    runs = [as_it_stands(run, places.run_of(run)) for run in state.runs]
    runs[2] = replace(runs[2], state=RunStatus.FAILED, message="<script> is no word")
    state = replace(state, runs=tuple(runs), metric="accuracy")
    text = table_text(table_of(state))
    assert text.splitlines()[0].split()[:6] == ["run", "learning_rate", "seed", "state", "accuracy", "loss"]
    assert "4 of 8" in text and "failed" in text and "waiting" in text
    shown = page(places, state)
    assert "&lt;script&gt; is no word" in shown and "<script>" not in shown
    assert f'href="runs/{state.runs[0].name}/report.html"' in shown
    assert shown.count("Content-Security-Policy") == 1
    assert "default-src 'none'; style-src 'unsafe-inline'; img-src data:\"" in shown, "a page without a script allows none"
    assert f"runs/{state.runs[1].name}/report.html" not in shown, "it has drawn none"
    for picture in (f"{RATE}-accuracy".replace(".", "-"), "seed-loss", "cost", "cache"):
        assert f'<section id="{picture}">' in shown


def test_a_sweep_that_has_ended_is_not_run_again(job_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places, state = made(job_file, tmp_path / "sweep", "seed=0,1")
    for run in state.runs:
        write_run(places.run_of(run).path)
    code, _, said = end_of(capsys, "resume", str(places.path))
    assert (code, "every run has ended; there is nothing to go on with" in said) == (exit_codes.USER_MISTAKE, True)
    code, _, said = end_of(capsys, "resume", str(places.path), "--set", "seed=3")
    assert (code, "is a sweep: resume one of its runs" in said) == (exit_codes.USER_MISTAKE, True)
    code, _, said = end_of(capsys, "resume", str(places.path), "--shared-cache", str(tmp_path))
    assert (code, "is a sweep: resume one of its runs" in said) == (exit_codes.USER_MISTAKE, True)
    places.write(replace(state, runs=tuple(as_it_stands(run, places.run_of(run)) for run in state.runs)))
    code, said, _ = end_of(capsys, "status", str(places.path), "--watch")
    assert (code, said.count("completed")) == (exit_codes.DONE, 2)
    code, said, _ = end_of(capsys, "status", str(places.path), "--json")
    assert [run["state"] for run in json.loads(said)["runs"]] == ["completed"] * 2
    code, said, _ = end_of(capsys, "report", str(places.path))
    assert (code, said) == (exit_codes.DONE, f"{places.page}\n") and places.page.exists()
    found = api.SweepResult(places.path)
    assert found.result(found.runs[1]).status == "completed"
    (places.state).write_text("{}")
    with pytest.raises(ValueError, match="is no sweep's"):
        places.read()


def test_from_python_a_mistake_is_the_commands(job_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(api.JobMistake, match="names no value"):
        api.sweep(job_file, {"seed": []})
    with pytest.raises(api.JobMistake, match="--set seed=3 fixes it"):
        api.sweep(job_file, {"seed": [1, 2]}, overrides={"seed": 3})
    assert not (tmp_path / "runs").exists()
