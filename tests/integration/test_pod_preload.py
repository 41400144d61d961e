"""The preload process of a pod of its own, as on Kubernetes: where it ends, the pod ends and says so."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.scripted_worker import wait_for
from tests.integration.test_local_cluster import ENV


def started(tmp_path: Path, script: str, module: str = ENV["FROSTLINE_WORKER_MODULE"]) -> subprocess.Popen[str]:
    env = {**os.environ, **ENV, "FROSTLINE_SCRIPT": script, "FROSTLINE_WORKER_MODULE": module,
           "FROSTLINE_LOG": str(tmp_path / "log"), "FROSTLINE_POD_NAME": "p"}  # fmt: skip
    env["PYTHONPATH"] = os.pathsep.join(path for path in (ENV["PYTHONPATH"], os.environ.get("PYTHONPATH")) if path)
    command = [sys.executable, "-m", "frostline_trainer.process.agent"]
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def end_of(agent: subprocess.Popen[str]) -> str:
    """Return what an agent said until its end. A pod that stays says nothing more, and is never ready."""
    try:
        _, said = agent.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        agent.terminate()
        pytest.fail("the agent waits for ever for a preload process")
    return said


def test_a_pod_whose_preload_process_is_killed_ends(tmp_path: Path) -> None:
    agent = started(tmp_path, "stubborn")
    log = tmp_path / "log"
    wait_for(lambda: log.exists() and "worker pod" in log.read_text(), "the worker")
    (preload,) = psutil.Process(agent.pid).children()
    worker = int(log.read_text().split("process=")[1].split()[0])
    preload.send_signal(signal.SIGKILL)
    assert "the preload process ended with code -9, so the pod ends" in end_of(agent)
    assert agent.returncode == 1
    wait_for(lambda: not psutil.pid_exists(worker), "the worker is gone")


def test_a_pod_whose_preload_process_cannot_start_ends(tmp_path: Path) -> None:
    agent = started(tmp_path, "stubborn", module="no_such_module")
    said = end_of(agent)
    assert "No module named 'no_such_module'" in said
    assert "the preload process ended with code 1, so the pod ends" in said
    assert agent.returncode == 1
