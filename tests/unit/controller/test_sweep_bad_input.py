"""Mistakes of the user who starts a sweep: each gives one clear line and exit status 2, and leaves nothing behind."""

from pathlib import Path

import pytest
import yaml

from tests.unit.controller.synthetic_run import job_values
from tests.unit.controller.test_bad_input import refusal

COMMAND_LINES = [
    ("sweep", "-f JOB is missing: name the job file, or a sweep to go on with by --resume DIR"),
    ("sweep -f {job}", "give --vary section.field=a,b,c once or more often"),
    ("sweep -f {dir}/none.yaml --vary seed=0-3", "none.yaml: cannot be read"),
    ("sweep -f {job} --vary seed", "--vary 'seed': write it as section.field=a,b,c or section.field=0-3"),
    ("sweep -f {job} --vary =1,2", "write it as section.field=a,b,c"),
    ("sweep -f {job} --vary seed=", "--vary seed: names no value; write seed=a,b,c or seed=0-3"),
    ("sweep -f {job} --vary seed=1,,2", "--vary 'seed=1,,2': a value is missing beside a comma"),
    ("sweep -f {job} --vary seed=3-0", "--vary 'seed=3-0': the range 3-0 runs backwards; write 0-3"),
    ("sweep -f {job} --vary seed=0-99999", "--vary: 100,000 runs are more than 1000"),
    ("sweep -f {job} --vary seed=0-40 --vary training.steps=1-40", "--vary: 1,640 runs are more than 1000"),
    ("sweep -f {job} --vary seed=[1", "--vary 'seed=[1': no valid YAML"),
    ("sweep -f {job} --vary sed=1,2", "--vary sed=1: sed: unknown key; did you mean seed?"),
    ("sweep -f {job} --vary training.steps=9,fast", "--vary training.steps=\"fast\": training.steps is 'fast'"),
    ("sweep -f {job} --vary model.family.a=1,2", "family is no section"),
    ("sweep -f {job} --vary seed=1,2 --set seed=3", "--vary seed: --set seed=3 fixes it; leave one of the two out"),
    ("sweep -f {job} --vary training.steps=1,2 --set training={{steps:__3}}", "fixes it; leave one of the two out"),
    ("sweep -f {job} --vary seed=1,2 --vary seed=3", "--vary seed: is varied twice; write all its values in one --vary"),
    ("sweep -f {job} --vary data.max_samples=8,9 --vary data={{}}", "--vary data: is varied within --vary data.max_samples"),
    (
        "sweep -f {job} --vary training.optimizer.learning_rate=1,2,1.0",
        "--vary: runs 1 and 3 would both have training.optimizer.learning_rate=1.0; give each value once",
    ),
    ("sweep -f {job} --vary name=a,b", "--vary name: a sweep names its runs itself"),
    ("sweep -f {job} --vary seed=1,2 --workers 1 --side-by-side 2", "--workers 1: too few for --side-by-side 2"),
    ("sweep -f {job} --vary placement.workers=1,4 --workers 2", "the run with placement.workers=4 needs 4; raise it"),
    (
        "sweep -f {job} --vary seed=1,2 --set checkpoint.uri=/tmp/x",
        "checkpoint.uri is '/tmp/x': all runs of the sweep would write",
    ),
    (
        "sweep -f {job} --vary seed=1,2 --set checkpoint.uri=../x",
        "checkpoint.uri is '../x': all runs of the sweep would write",
    ),
    ("sweep -f {job} --vary seed=1,2 --out {dir}", "is not empty and holds no run"),
    ("sweep -f {job} --vary seed=1,2 --retry-failed", "--retry-failed: says something with --resume DIR only"),
    ("sweep --resume {dir}", "is no sweep: it has no sweep.json"),
    ("sweep --resume {dir} --vary seed=1", "--vary: a sweep that goes on keeps its jobs; leave it out"),
    ("run -f {job} --shared-cache {dir}", "no cache is kept there for several runs; leave it out"),
]


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Write the files that the command lines name. A command that is accepted by mistake fails, instead of training."""
    for starts in ("local_run.requests.watch", "sweep.requests.SweepRunner"):
        monkeypatch.setattr(f"frostline_controller.{starts}", lambda *given, **named: pytest.fail("it was started"))
    monkeypatch.chdir(tmp_path)
    job = tmp_path / "job.in"
    job.write_text(yaml.safe_dump(job_values()))
    return {"dir": tmp_path, "job": job}


@pytest.mark.parametrize(("line", "says"), COMMAND_LINES)
def test_a_mistake_starts_nothing(line: str, says: str, places: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert says in refusal(capsys, *(word.replace("__", " ") for word in line.format(**places).split()))
    assert [path.name for path in places["dir"].iterdir()] == ["job.in"]
