"""The example package in examples/extension: installed as by a user, found by its entry points, used in training, verified."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.runs import FROSTLINE, ROOT, Ended, Workshop

EXAMPLE = ROOT / "examples" / "extension"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a PYTHONPATH with the package installed in a folder of its own, so that the environment stays unchanged."""
    folder = tmp_path_factory.mktemp("extension")
    shutil.copytree(EXAMPLE, folder / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*pip, "--target", str(folder / "site"), str(folder / "source")], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="module")
def trained(installed: str, workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("stripes") / "run"
    # A separate preload process: the shared one was started in an environment without the package.
    env = {**workshop.env, "PYTHONPATH": installed, "FROSTLINE_PRELOAD": ""}
    words = [*FROSTLINE, "run", "-f", str(EXAMPLE / "stripes.yaml"), "--out", str(folder)]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=240, check=False)
    return Ended(folder, done.returncode, done.stdout + done.stderr)


def test_a_job_of_the_users_own_parts_trains(trained: Ended) -> None:
    assert trained.code == 0, trained.story()
    assert trained.result["final"]["accuracy"] > 0.9, trained.result["final"]
    policies = {decision["policy"] for decision in trained.decisions}
    assert policies == {"loss_plateau"}
    assert any("loss_plateau: the loss" in decision["reason"] for decision in trained.decisions)
    schedules = {line["placement"]["schedule"] for line in trained.lines("plans.jsonl") if line["kind"] == "plan"}
    assert "eager_1f1b" in schedules
    assert trained.records[0]["degrees"]["pp"] == 2


@pytest.mark.wide
def test_it_is_as_exact_as_a_built_in_one(trained: Ended, installed: str, workshop: Workshop) -> None:
    checked = workshop.command("verify", str(trained.folder), PYTHONPATH=installed)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "all the same bits" in checked.stdout


def test_it_is_planned_for_and_unknown_without_the_package(installed: str, workshop: Workshop, tmp_path: Path) -> None:
    deep = ("--set", "placement.pp_degree=2")
    planned = workshop.command("plan", "-f", str(EXAMPLE / "stripes.yaml"), *deep, PYTHONPATH=installed)
    assert planned.returncode == 0, planned.stderr
    assert "eager_1f1b" in planned.stdout
    unknown = workshop.run(tmp_path / "run", {"data": {"source": "stripes", "augmentation": {"mode": "off", "shift_pixels": 0}}})
    assert unknown.code == 2, unknown.story()
    assert "data.source is 'stripes'; known: " in unknown.output
