"""The Python API trains, verifies and reports like the command: the same run, the same digest."""

from pathlib import Path

import pytest

from frostline_contract.job import parse_job
from frostline_controller import api
from tests.e2e.runs import TINY_DIGITS, Ended


def test_a_run_from_python_has_the_commands_digest(
    one_worker: Ended, preload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROSTLINE_PRELOAD", preload)
    monkeypatch.chdir(tmp_path)
    run = api.start(parse_job(TINY_DIGITS), out="mine", workers=2, overrides={"elastic.cache": False}, report=False)
    assert run.running and run.status()["state"] in ("unreachable", "waiting", "running")
    done = run.wait()
    assert not run.running
    assert (done.status, done.steps, done.digest) == ("completed", 60, one_worker.digest)
    assert [record["loss"] for record in done.metrics] == one_worker.losses
    assert done.final == pytest.approx(one_worker.result["final"], abs=0)
    assert done.directory == tmp_path / "mine"
    assert (done.model_directory / "config.json").exists()
    assert not (done.directory / "report.html").exists()
    assert api.result("mine") == done
    assert api.status(done.directory)["state"] == "completed"
    assert "step     30" in api.verify(done.directory, steps=[30])
    with pytest.raises(api.JobMistake, match="step 99 is not recorded"):
        api.verify(done.directory, steps=[99])
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
