"""The controller's plug: nothing by default, planned faults where the job has some, and only on a cluster that has them."""

import asyncio
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from frostline_contract.phases import ControllerPhase
from frostline_controller.cluster.backend import RUNNING, PodInfo
from frostline_controller.faults.breakable import Breakable
from frostline_controller.faults.planned import PlannedFaults
from frostline_controller.run.plug import NoPlug, plug_of
from tests.unit.controller.test_service_sizing import Stage

FAULT = {"kind": "kill_node", "step": 1, "worker": 0}


def test_nothing_is_plugged_in_by_itself(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    assert isinstance(plug_of(stage.run), NoPlug)
    assert isinstance(stage.controller.plug, NoPlug)
    asyncio.run(stage.controller.plug.advance())
    asyncio.run(stage.controller.plug.at(ControllerPhase.PLANNED))
    assert not (tmp_path / "cluster" / "faults").exists()


def test_a_job_that_plans_faults_has_them_plugged_in(tmp_path: Path) -> None:
    assert isinstance(plug_of(Stage(tmp_path, faults=[FAULT]).run), PlannedFaults)


def test_a_process_of_production_does_not_import_faults() -> None:
    started = ", ".join(f"frostline_controller.{name}" for name in ("__main__", "api", "cli.run"))
    code = f"import sys, {started}; print([name for name in sys.modules if name.startswith('frostline_controller.faults')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_a_cluster_that_cannot_be_broken_is_the_jobs_mistake(tmp_path: Path) -> None:
    stage = Stage(tmp_path, faults=[FAULT])
    assert isinstance(stage.backend, Breakable)
    pods = [PodInfo("trainer-0", "uid-0", "node-0", RUNNING, 1.0, True)]
    facts = SimpleNamespace(
        job=stage.run.facts.job, step=1, cluster=SimpleNamespace(pods=pods), current=SimpleNamespace(generation="1.1"),
        ended=False, members=(), awaited=lambda: (), state=stage.facts.state,
    )  # fmt: skip
    whole = SimpleNamespace(delete_pod=lambda name, grace: None)
    with pytest.raises(ValueError, match="kill_node: a cluster breaks by itself"):
        asyncio.run(PlannedFaults(facts, stage.store, stage.run.outbox, whole).advance())
