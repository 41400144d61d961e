"""The arithmetic and the tables of `frostline compare`, from synthetic outcomes and run directories."""

import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from frostline_contract.job import apply_overrides, dump_job, load_job, parse_job
from frostline_contract.job.automatic import Settled
from frostline_controller.cli.compare import accuracy_trials, settled_for_all, share_equal_numerics, time_trials
from frostline_controller.comparison import trials
from frostline_controller.comparison.report import Comparison, write_comparison
from frostline_controller.comparison.statistics import paired_difference, sign_flip_lower_bound
from frostline_controller.comparison.trials import (
    Outcome,
    Trial,
    best_static_micro_batch,
    read_outcome,
    run_trial,
    static_overrides,
)
from frostline_controller.decisions.student_t import t_quantile, upper_tail
from frostline_controller.ledger.sums import Ledger
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.errors import CommandError, UserMistake
from frostline_controller.local_run.run_lock import owned
from frostline_controller.local_run.separate_process import RunError
from tests.unit.controller.synthetic_run import job_values, write_run
from tests.unit.controller.test_cli import end_of

# Tables of Student's distribution: 95 % quantiles by degrees of freedom.
QUANTILES = {1: 6.3138, 2: 2.9200, 3: 2.3534, 4: 2.1318, 9: 1.8331, 19: 1.7291, 30: 1.6973, 120: 1.6577}


def outcome(arm: str, seed: int, accuracy: float, seconds: float = 10.0, digest: str = "d") -> Outcome:
    return Outcome(
        arm=arm, seed=seed, workers=4, wall_seconds=seconds + 2, training_seconds=seconds, digest=digest,
        final={"loss": 0.3, "accuracy": accuracy}, freeze_point=0 if arm == "static" else 3, num_units=8,
        shapes=((4, 1), (2, 2)), cache_hits=7, cache_misses=0, micro_batch_size=8,
        worker_seconds=4 * seconds,
    )  # fmt: skip


@pytest.mark.parametrize(("degrees", "quantile"), QUANTILES.items())
def test_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert t_quantile(0.95, degrees) == pytest.approx(quantile, abs=1e-4)
    assert upper_tail(quantile, degrees) == pytest.approx(0.05, abs=1e-4)


def test_a_paired_difference_by_hand() -> None:
    found = paired_difference({0: 0.95, 1: 0.97, 2: 0.96, 9: 0.1}, {0: 0.94, 1: 0.94, 2: 0.94})
    # Differences 0.01, 0.03, 0.02: mean 0.02, deviation 0.01, half width 2.92 x 0.01 / sqrt(3).
    assert found.mean == pytest.approx(0.02)
    assert found.lower == pytest.approx(0.02 - 2.9200 * 0.01 / math.sqrt(3), abs=1e-6)
    assert found.upper == pytest.approx(0.02 + 2.9200 * 0.01 / math.sqrt(3), abs=1e-6)
    assert found.sign_flip_lower == -math.inf
    assert paired_difference({0: 1.0}, {0: 0.5}).lower is None
    with pytest.raises(ValueError, match="no common seed"):
        paired_difference({0: 1.0}, {1: 1.0})


def test_the_sign_flip_bound_is_where_the_test_turns() -> None:
    # With five pairs only the all-positive pattern (1 of 32) is rarer than 5 %: the bound is the least difference.
    assert sign_flip_lower_bound((0.3, 0.1, 0.2, 0.5, 0.4)) == pytest.approx(0.1, abs=1e-6)
    source = random.Random(1)
    normal = tuple(source.gauss(0.0, 1.0) for _ in range(12))
    t_bound = paired_difference(dict(enumerate(normal)), dict.fromkeys(range(12), 0.0)).lower
    assert t_bound is not None
    assert abs(sign_flip_lower_bound(normal) - t_bound) < 0.15


def test_arms_with_equal_numerics_share_their_accuracy_runs(tmp_path: Path) -> None:
    job = parse_job(job_values())
    arms = ["static", "freezing", "elastic"]
    trials = accuracy_trials(job, arms, [0, 1], 1, tmp_path)
    assert [(trial.arm, trial.seed, trial.workers) for trial in trials] == [
        ("static", 0, 1), ("freezing", 0, 1), ("static", 1, 1), ("freezing", 1, 1)
    ]  # fmt: skip
    shared = share_equal_numerics(job, arms, [outcome("static", 0, 0.9), outcome("freezing", 0, 0.8)])
    assert [(found.arm, found.final["accuracy"]) for found in shared] == [("static", 0.9), ("freezing", 0.8), ("elastic", 0.8)]
    fast = parse_job(apply_overrides(job_values(), ["training.numerics=fast"]))
    assert len(accuracy_trials(fast, arms, [0], 1, tmp_path)) == 3


def test_all_runs_of_a_comparison_have_one_answer_to_auto(tmp_path: Path) -> None:
    plain, said = parse_job(job_values()), list[str]()
    assert settled_for_all(plain, tmp_path, said.append) == (plain, [])
    (tmp_path / "settled.json").write_text(
        Settled(micro_batch_size=4, reduction_leaves=2, reason="measured before").model_dump_json()
    )
    asked = ["training.micro_batch_size=auto", "training.reduction_leaves=auto"]
    for _ in range(2):
        job, settings = settled_for_all(parse_job(apply_overrides(job_values(), asked)), tmp_path, said.append)
        assert settings == ["training.micro_batch_size=4", "training.reduction_leaves=2"]
        assert job == parse_job(apply_overrides(job_values(), settings))
    assert said == ["measured before"] * 2
    other = parse_job(apply_overrides(job_values(), [*asked, "training.clip_norm=0.5"]))
    with pytest.raises(
        UserMistake, match=r"settled.json is of another job \(training.clip_norm .*, not 0.5\); give another --out"
    ):
        settled_for_all(other, tmp_path, said.append)


def test_timed_arms_take_turns_and_static_has_its_own_numerics(tmp_path: Path) -> None:
    job = parse_job(job_values())
    trials = time_trials(job, ["static", "elastic"], [0, 1], tmp_path, micro_batch_size=32)
    assert [(trial.arm, trial.seed) for trial in trials] == [("static", 0), ("elastic", 0), ("elastic", 1), ("static", 1)]
    assert "training.numerics=fast" in trials[0].overrides
    assert trials[1].overrides == ()
    # 64 samples in micro-batches of 32 are two: as many leaves, and the job is still valid.
    assert static_overrides(job, 32)[:2] == ("training.micro_batch_size=32", "training.reduction_leaves=2")
    assert parse_job(apply_overrides(job_values(), trials[0].settings())).elastic.freeze is False
    assert parse_job(apply_overrides(job_values(), trials[1].settings())).elastic.cache is True


def test_an_outcome_is_read_from_a_run_directory(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "elastic-0")
    found = read_outcome(Trial("elastic", 0, 4, folder))
    assert found.final == {"loss": 0.2104, "accuracy": 0.9611}
    assert (found.freeze_point, found.num_units, found.wall_seconds) == (4, 8, 42.5)
    assert found.shapes == ({"dp": 1, "pp": 4}, {"dp": 2, "pp": 2}, {"dp": 4, "pp": 1})
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    # Every shape of that run has four workers; steps that were cut off were computed too, and one record came twice.
    seconds = {(line["lineage"], line["step"]): line["step_seconds"] for line in lines if "step" in line}
    assert found.worker_seconds == pytest.approx(4 * sum(seconds.values()))
    assert found.training_seconds == pytest.approx(0.33 * 119 + 5, rel=0.05)


def completed(trial: Trial, job_file: Path) -> Path:
    """Write the directory of a completed run of a trial."""
    folder = write_run(trial.folder)
    (folder / "job.yaml").write_text(dump_job(trial.job(str(job_file), [])))
    return folder


def test_a_completed_run_is_read_only_where_it_is_of_the_same_job(tmp_path: Path) -> None:
    (job_file := tmp_path / "job.in").write_text(yaml.safe_dump(job_values()))
    trial = Trial("elastic", 0, 4, tmp_path / "elastic-0")
    folder = completed(trial, job_file)
    assert run_trial(trial, str(job_file), []) == read_outcome(trial)
    with pytest.raises(UserMistake, match=r"elastic-0 is of another job \(training.clip_norm .*, not 0.5\); give another --out"):
        run_trial(trial, str(job_file), ["training.clip_norm=0.5"])
    with pytest.raises(UserMistake, match=r"placement.workers 4, not 2"):
        run_trial(replace(trial, workers=2), str(job_file), [])
    assert (folder / "result.json").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--set", "training.clip_norm=0.5"], "elastic-1 is of another job (training.clip_norm"),
        (["--static-micro-batch", "4096"], "batch_size 64 is smaller than micro_batch_size 4096"),
    ],
)
def test_what_a_comparison_cannot_use_is_refused_before_its_first_run(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frostline_controller.cli.compare.run_trial", lambda *given: pytest.fail("a run was started"))
    (job_file := tmp_path / "job.in").write_text(yaml.safe_dump(job_values()))
    out = tmp_path / "out"
    completed(Trial("elastic", 1, 4, out / "time" / "elastic-1"), job_file)
    asked = ["--arms", "static,elastic", "--seeds", "0-1", "--out", str(out), *words]
    code, _, error = end_of(capsys, "compare", "-f", str(job_file), *asked)
    assert code == exit_codes.USER_MISTAKE
    assert says in error


def test_a_run_that_somebody_trains_is_not_made_again(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "elastic-0", finished=False)
    with owned(folder), pytest.raises(UserMistake, match="is running"):
        run_trial(Trial("elastic", 0, 4, folder), "none.yaml", [])
    assert (folder / "metrics.jsonl").exists()


def test_two_comparisons_do_not_share_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frostline_controller.cli.compare.run_trial", lambda *given: pytest.fail("a run was started"))
    (job := tmp_path / "job.yaml").write_text(yaml.safe_dump(job_values()))
    (out := tmp_path / "out").mkdir()
    with owned(out):
        code, _, error = end_of(capsys, "compare", "-f", str(job), "--out", str(out))
    assert code == exit_codes.USER_MISTAKE
    assert f"{out} is running; see the runs in {out} (process {os.getpid()} on " in error


COMPARES = """
import sys
from pathlib import Path
from frostline_controller.comparison.trials import Trial, run_trial
from frostline_controller.local_run import requests
requests.PROCESS = "sleeper"
run_trial(Trial("static", 0, 1, Path("run").absolute()), "job.yaml", [])
"""
SLEEPER = "import os, time\nopen('trains', 'w').write(str(os.getpid()))\ntime.sleep(60)\n"


def test_a_run_does_not_outlive_its_comparison(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job_values()))
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sleeper.py").write_text(SLEEPER)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "modules"), *filter(None, sys.path)])}
    comparison = subprocess.Popen([sys.executable, "-c", COMPARES], cwd=tmp_path, env=env)
    assert within(120.0, lambda: (tmp_path / "trains").exists() and (tmp_path / "trains").read_text())
    trains = psutil.Process(int((tmp_path / "trains").read_text()))
    comparison.kill()
    comparison.wait()
    try:
        assert within(60.0, lambda: not trains.is_running() or trains.status() == psutil.STATUS_ZOMBIE)
    finally:
        if trains.is_running():
            trains.kill()


def within(seconds: float, condition: Callable[[], object]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return bool(condition())


def test_the_comparison_is_told_in_three_forms(tmp_path: Path) -> None:
    accuracy = [outcome("static", seed, 0.95) for seed in range(10)]
    accuracy += [outcome("elastic", seed, 0.95 + 0.001 * (seed - 5)) for seed in range(10)]
    times = [outcome("static", seed, 0.95, seconds=20.0 + seed, digest="s") for seed in range(3)]
    times += [outcome("elastic", seed, 0.95, seconds=10.0) for seed in range(3)]
    comparison = Comparison(
        "digits", ("static", "elastic"), tuple(range(10)), tuple(accuracy), tuple(times), {8: 0.02, 16: 0.015}
    )
    text = write_comparison(comparison, tmp_path)
    reported = json.loads((tmp_path / "comparison.json").read_text())
    assert reported["differences"]["accuracy"]["elastic"]["mean"] == pytest.approx(-0.0005)
    assert reported["differences"]["accuracy"]["elastic"]["lower"] < -0.0005
    assert reported["time_ratios"]["training_seconds"] == {"elastic": 2.1}
    assert reported["digests_agree"] == {f"elastic-{seed}": True for seed in range(3)}
    assert "| elastic | 10 | -0.0005 |" in text
    assert replace(comparison, placement_is_free=False).same_digests() == {}, "with fast numerics they need not agree"
    assert "| elastic | 2.1000 |" in text
    assert "3 of 3 runs" in text
    assert (tmp_path / "comparison-accuracy.svg").read_text().startswith("<?xml")
    assert (tmp_path / "comparison-time.svg").exists()


def test_without_scores_of_the_test_split_a_comparison_shows_its_times(tmp_path: Path) -> None:
    """`evaluation.test_at_end` is false."""
    found = [replace(outcome(arm, 0, 0.9), final={}) for arm in ("static", "elastic")]
    text = write_comparison(Comparison("digits", ("static", "elastic"), (0,), tuple(found), tuple(found), {}), tmp_path)
    assert "| elastic | 1.0000 |" in text
    assert [one.name for one in tmp_path.glob("*.svg")] == ["comparison-time.svg"]


def test_a_larger_micro_batch_that_cannot_run_ends_the_search_for_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process of a run is played: one of another size than `fits` is refused."""
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job_values()))
    job, fits = load_job(str(file)), {8}

    class Played:
        def __init__(self, request: Any, **how: Any) -> None:
            self.request = request

        def wait(self, seconds: float) -> bool:
            return True

        def end(self) -> None:
            if self.request.job.training.micro_batch_size not in fits:
                raise RunError(exit_codes.USER_MISTAKE, "no placement fits")
            write_run(Path(self.request.out))

    assert job.training.micro_batch_size == 8 < job.training.batch_size
    monkeypatch.setattr(trials, "in_a_process", Played)
    monkeypatch.setattr(trials, "read_outcome", lambda trial: None)
    size, measured = best_static_micro_batch(job, str(file), [], tmp_path / "sizes", 4)
    assert [size] == list(measured) == [8]
    fits.clear()
    with pytest.raises(CommandError, match="no placement fits"):
        best_static_micro_batch(job, str(file), [], tmp_path / "again", 4)


def test_the_ledgers_of_timed_runs_stand_side_by_side(tmp_path: Path) -> None:
    def timed(arm: str, seed: int, computing: float, saved: float) -> Outcome:
        ledger = Ledger(used={"computing": computing, "idle": 10.0}, saved={"freezing": saved})
        return replace(outcome(arm, seed, 0.9), ledger=ledger)

    times = (timed("static", 0, 100.0, 0.0), timed("static", 1, 300.0, 0.0), timed("elastic", 0, 80.0, 30.0))
    text = write_comparison(Comparison("job", ("static", "elastic"), (0, 1), times, times, {}), tmp_path)
    assert "| computing | 200.0 | 80.0 |" in text and "| together | 210.0 | 90.0 |" in text
    assert "| saved by freezing, estimated | 0.0 | 30.0 |" in text
    runs = json.loads((tmp_path / "comparison.json").read_text())["time_runs"]
    assert runs[2]["ledger"]["saved_estimates"] == {"freezing": 30.0}
