"""The example package in examples/extension: installed as by a user, found by its entry points, used in training, verified."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.runs import FROSTLINE, ROOT, Ended, Workshop, warm_preload
from tests.e2e.test_pieces import saved_model

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


OTHER_FAMILIES = """
from frostline_stripes.family import Mixer
from frostline_stripes.model import MixerConfig
from frostline_trainer.tensor.table import TensorTable


class Planned(Mixer):
    name, tensor_table = "planned", None


class Crooked(Mixer):
    name = "crooked"

    def tensor_table(self, config):
        return TensorTable(columns=("over_channels.0",), rows=("over_tokens.2",))


MixerConfig.base_model_tp_plan = {"layers.*.over_channels.0": "colwise", "layers.*.over_channels.2": "rowwise"}
"""
"""The same mixer with transformers' own plan in place of a table, and with a table that is wrong."""
ENTRY_POINTS = "[frostline.families]\nplanned = others:Planned\ncrooked = others:Crooked\n"


@pytest.fixture(scope="module")
def home(installed: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return an environment with the package and the other families, and a preload process that was started in it."""
    folder = tmp_path_factory.mktemp("others")
    metadata = folder / "others-1.dist-info"
    metadata.mkdir()
    (folder / "others.py").write_text(OTHER_FAMILIES)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    path = os.pathsep.join([str(folder), installed])
    with warm_preload(PYTHONPATH=path) as socket:
        yield {**os.environ, "PYTHONPATH": path, "FROSTLINE_PRELOAD": socket, "OMP_NUM_THREADS": "1"}


def train(folder: Path, home: dict[str, str], *words: str) -> Ended:
    """Run the example's job by the command."""
    command = [*FROSTLINE, "run", "-f", str(EXAMPLE / "stripes.yaml"), "--out", str(folder), *words]
    done = subprocess.run(command, env=home, capture_output=True, text=True, timeout=240, check=False)
    return Ended(folder, done.returncode, done.stdout + done.stderr)


@pytest.fixture(scope="module")
def trained(home: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return train(tmp_path_factory.mktemp("stripes") / "run", home)


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


def in_tiles(family: str, **placement: int) -> list[str]:
    """Return the words of a short run in two tiles that keeps its shape."""
    values = {"initial_pp_degree": "null", "schedule": "1f1b", "pp_degree": 1, "dp_degree": 1, **placement}
    numerics = ["training.epochs=1", "training.tensor_tiles.inner=2", f"model.family={family}"]
    settings = [*numerics, *(f"placement.{key}={value}" for key, value in values.items())]
    return ["--no-report", *(word for one in settings for word in ("--set", one))]


@pytest.mark.wide
def test_a_group_shares_the_tiles_of_the_users_family(home: dict[str, str], tmp_path: Path) -> None:
    """Its tensor table, and transformers' plan of the same layers, give one worker's run and a group's the same digest, and the
    same model, of which each member has a half."""
    alone = train(tmp_path / "alone", home, *in_tiles("planned", workers=1))
    group = train(tmp_path / "group", home, *in_tiles("mixer", workers=2, tp_degree=2))
    assert group.digest == alone.digest
    assert saved_model(group) == saved_model(alone)
    assert {plan["placement"]["degrees"].get("tp_columns", 1) for plan in group.plans} == {2}


def test_a_wrong_tensor_table_of_the_users_family_is_refused_by_name(home: dict[str, str], tmp_path: Path) -> None:
    refused = train(tmp_path / "run", home, *in_tiles("crooked", workers=1))
    assert refused.code == 2, refused.story()
    assert "model.family crooked, block 0" in refused.output and "tensor_table" in refused.output
