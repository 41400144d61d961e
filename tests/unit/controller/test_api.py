"""The Python API without training: its calls, their results, and the errors for mistakes. Runs through it: tests/e2e."""

import json
from pathlib import Path

import pytest
import yaml

from frostline_contract.job import parse_job
from frostline_controller import api
from frostline_controller.local_run import requests
from frostline_controller.local_run.exit_codes import NO_RUN
from frostline_controller.local_run.requests import NewRun, ResumedRun
from frostline_controller.sweep import requests as sweep_requests
from frostline_controller.sweep.grid import Axis
from frostline_controller.sweep.requests import NewSweep, ResumedSweep
from tests.unit.controller.synthetic_run import job_values, write_run


def test_plan_answers_like_the_command_for_a_mapping_and_for_a_job() -> None:
    of_mapping = api.plan(job_values(), devices=[2, 4])
    assert [plan["devices"] for plan in of_mapping["plans"]] == [2, 4]
    assert of_mapping == api.plan(parse_job(job_values()), devices=[2, 4])


def test_overrides_reach_the_job(tmp_path: Path) -> None:
    found = api.plan(job_values(), overrides={"placement.workers": 3, "name": "renamed"})
    assert found["job"] == "renamed"
    assert [plan["devices"] for plan in found["plans"]] == [3]


def test_a_mapping_s_texts_stay_texts() -> None:
    assert api.plan({**job_values(), "name": "1e3"}, devices=[2])["job"] == "1e3"


def test_a_mistake_is_a_value_error_with_the_commands_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(api.JobMistake, match=r"training\.stepz: unknown key; did you mean steps\?") as caught:
        api.run({**job_values(), "training": {"stepz": 3}})
    assert isinstance(caught.value, ValueError)
    assert caught.value.code == 2
    assert list(tmp_path.iterdir()) == [], "a refused job leaves neither a run nor its own file behind"
    with pytest.raises(api.JobMistake, match="cannot be read"):
        api.plan(tmp_path / "no.yaml")
    with pytest.raises(api.JobMistake, match="no such directory"):
        api.status(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no run directory"):
        api.result(tmp_path)


def test_a_used_directory_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    with pytest.raises(api.JobMistake, match="holds another run"):
        api.run(job_values(), out=tmp_path / "run")


def test_what_is_found_wrong_after_the_start_is_raised_by_whoever_waits(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job_values()))
    run = api.start(file, out=tmp_path / "run", replay=tmp_path / "nowhere")
    with pytest.raises(api.JobMistake, match="holds no plans"):
        run.wait()
    assert not run.running
    with pytest.raises(api.RunError, match="no controller has been started here") as caught:
        run.suspend()
    assert caught.value.code == NO_RUN


def test_a_finished_run_is_a_view_of_its_directory(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_run(folder)
    found = api.result(folder)
    assert found.status == "completed"
    assert found.digest == json.loads((folder / "result.json").read_text())["digest"]
    steps = [record["step"] for record in found.metrics]
    assert steps == sorted(set(steps))
    assert found.steps == steps[-1]
    assert api.status(folder)["state"] == "completed"
    with pytest.raises(api.JobMistake, match="there is nothing to go on with"):
        api.resume(folder)


def test_a_request_reaches_the_process_of_the_run_as_it_is(tmp_path: Path) -> None:
    """Numbers as keys and all digits of a rate too, which JSON alone would change."""
    job = parse_job(job_values(freeze={"policy": {"name": "manual", "points": {1: 2, 3: 4}}}))
    rate = job.model_copy(update={"training": job.training.model_copy(update={"clip_norm": 0.1 + 0.2})})
    for request in (
        NewRun(
            job=rate, job_file=tmp_path / "schön.yaml", out="runs/\udcff", replay=tmp_path, shared_cache=tmp_path, report=False
        ),
        ResumedRun(folder=tmp_path, overrides=("cache.use=never",), workers=3, from_scratch=True, quiet=False),
    ):
        assert requests.read_request(request.text) == request
    for swept in (
        NewSweep(job_file="job.yaml", axes=(Axis("seed", (0, 1)), Axis("data.path", ("a, b", None))), workers=4, side_by_side=2),
        ResumedSweep(folder="runs/sweep", retry_failed=True),
    ):
        assert sweep_requests.read_request(swept.text) == swept
    with pytest.raises(ValueError, match="workers"):
        requests.read_request(json.dumps({"kind": "resume", "folder": "run", "workers": 0}))
