"""Planned faults of a worker: each kind does what the job file says, at its step and phase, once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from frostline_contract.durable_files import create_durably
from frostline_contract.job import parse_job
from frostline_trainer.faults.of_worker import FaultPlan, Progress
from frostline_trainer.faults.partition import is_cut_off
from frostline_trainer.process.identity import Identity, worker_id_of
from frostline_trainer.step.phases import PhaseClock
from tests.integration.scripted_worker import job_values, wait_for

STEP_PHASES = ("load", "schedule", "exchange", "norms", "prepared", "vote", "tally", "seen", "commit", "update")


def identity(folder: Path, ordinal: int = 1, nonce: str = "nonce") -> Identity:
    return Identity(run_dir=folder, controller=str(folder / "controller.address"), token="t", pod_name=f"trainer-{ordinal}",
                    worker_id=f"uid/{nonce}", node="node-1", host="127.0.0.1")  # fmt: skip


class Training:
    """Walks the phases as a worker does: `step` is the last committed one."""

    def __init__(self, folder: Path, *faults: dict[str, Any], ordinal: int = 1) -> None:
        self.step = 0
        self.clock = PhaseClock()
        job = parse_job(job_values(faults=list(faults)))
        self.plan = FaultPlan.of(job, identity(folder, ordinal), lambda: Progress(self.step, 2, "1.3", (4,)))
        self.plan.watch(self.clock)

    def one_step(self) -> None:
        for phase in STEP_PHASES:
            self.clock.enter(phase)
        self.step += 1
        for phase in ("committed", "between"):
            self.clock.enter(phase)

    def until_hit(self) -> tuple[int, str]:
        """Return the last committed step and the phase at which the planned error was raised."""
        with pytest.raises(RuntimeError, match=r"^planned fault 0: "):
            for _ in range(30):
                self.one_step()
        return self.step, self.clock.now().phase


@pytest.mark.parametrize(
    ("fault", "committed", "phase"),
    [
        ({"kind": "raise", "step": 5}, 4, "schedule"),
        ({"kind": "raise", "step": 5, "phase": "load"}, 4, "load"),
        ({"kind": "raise", "step": 5, "phase": "commit"}, 4, "commit"),
        ({"kind": "raise", "step": 5, "phase": "committed"}, 5, "committed"),
        ({"kind": "raise", "step": 5, "phase": "between"}, 5, "between"),
        ({"kind": "tear", "step": 5}, 4, "update"),
        ({"kind": "late_commit", "step": 5}, 4, "tally"),
    ],
)
def test_an_error_comes_at_its_step_and_phase(tmp_path: Path, fault: dict[str, Any], committed: int, phase: str) -> None:
    training = Training(tmp_path, {"worker": 1, **fault})
    assert training.until_hit() == (committed, phase)
    said = json.loads((tmp_path / "cluster" / "faults" / "0").read_text())
    at = said.pop("time_seconds")
    assert said == {"index": 0, "kind": fault["kind"], "worker_ids": ["uid/nonce"], "pods": ["trainer-1"], "step": 5,
                    "phase": phase, "generation": "1.3", "lineage": 2, "pieces": [4]}  # fmt: skip
    assert 0 <= time.time() - at < 60
    assert [file.name for file in (tmp_path / "cluster" / "faults").iterdir()] == ["0"]


@pytest.mark.parametrize(
    ("kind", "error"), [("device_error", torch.AcceleratorError), ("oom", torch.OutOfMemoryError)], ids=["device_error", "oom"]
)
def test_a_device_that_fails_raises_what_torch_raises(tmp_path: Path, kind: str, error: type[RuntimeError]) -> None:
    training = Training(tmp_path, {"kind": kind, "step": 5, "worker": 1, "phase": "norms"})
    with pytest.raises(error, match=r"planned fault 0"):
        for _ in range(30):
            training.one_step()
    assert (training.step, training.clock.now().phase) == (4, "norms")


def test_a_device_hangs_from_the_beginning_of_its_step(tmp_path: Path) -> None:
    training, hung = Training(tmp_path, {"kind": "device_hang", "step": 5, "worker": 1}), list[int]()
    training.plan.hang = lambda: hung.append(training.step + 1)
    for _ in range(10):
        training.one_step()
    assert hung == [5]
    assert json.loads((tmp_path / "cluster" / "faults" / "0").read_text())["phase"] == "load"


def test_a_fault_happens_once_also_where_another_process_computes_its_step_again(tmp_path: Path) -> None:
    fault = {"kind": "raise", "step": 5, "worker": 1}
    assert Training(tmp_path, fault).until_hit() == (4, "schedule")
    again = Training(tmp_path, fault)
    for _ in range(10):
        again.one_step()
    assert again.step == 10


def test_a_step_that_is_never_in_the_phase_waits_for_a_later_one(tmp_path: Path) -> None:
    training = Training(tmp_path, {"kind": "raise", "step": 3, "phase": "evaluate", "worker": 1})
    for _ in range(6):
        training.one_step()
    with pytest.raises(RuntimeError, match="planned fault 0: raise at step 6 in evaluate"):
        training.clock.enter("evaluate")


def test_other_pods_are_spared_and_nothing_watches_them(tmp_path: Path) -> None:
    spared = Training(tmp_path, {"kind": "raise", "step": 1, "worker": 1}, {"kind": "kill_pod", "step": 1}, ordinal=0)
    assert spared.clock.hook is None
    for _ in range(3):
        spared.one_step()
    assert not (tmp_path / "cluster").exists()


def test_slow_makes_twenty_steps_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[tuple[int, float]] = []
    training = Training(tmp_path, {"kind": "slow", "step": 3, "worker": 1, "seconds": 0.25, "phase": "exchange"})
    monkeypatch.setattr(time, "sleep", lambda seconds: slept.append((training.step + 1, seconds)))
    for _ in range(40):
        training.one_step()
    assert slept == [(step, 0.25) for step in range(3, 23)]


def test_cut_lets_nothing_pass_for_its_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROSTLINE_CUT", str(tmp_path / "cut" / "uid"))
    now = [1_000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    training = Training(tmp_path, {"kind": "cut", "step": 2, "worker": 1, "seconds": 0.3})
    training.one_step()
    assert not is_cut_off()
    training.one_step()
    assert is_cut_off()
    now[0] += 0.29
    assert is_cut_off()
    now[0] += 0.02
    assert not is_cut_off(), "the cut heals"


CHILD = """
import sys, threading, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.unit.trainer.test_faults import Training
training = Training(Path(sys.argv[1]), {fault!r})
beating = threading.Thread(target=lambda: [(print("beat", flush=True), time.sleep(0.02)) for _ in range(3000)], daemon=True)
beating.start()
for _ in range(6):
    training.one_step()
    for operation in ("create", "write", "sync", "rename"):
        training.plan.before_file(operation, training.step)
print("survived", flush=True)
"""


CHILD_SECONDS = 120.0
"""Time for a child to import torch and compute, on a machine that is busy with other tests: no bound of what is tested."""


def child(folder: Path, kind: str, **fields: Any) -> subprocess.Popen[str]:
    """Run a process that computes 6 steps and checkpoints each; the fault is planned at step 3."""
    root = str(Path(__file__).resolve().parents[3])
    code = CHILD.format(root=root, fault={"kind": kind, "step": 3, "worker": 1, **fields})
    return subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("fields", [{"kind": "kill_worker", "phase": "vote"}, {"kind": "kill_in_checkpoint"}])
def test_killed_by_itself(tmp_path: Path, fields: dict[str, Any]) -> None:
    process = child(tmp_path, **fields)
    output, _ = process.communicate(timeout=CHILD_SECONDS)
    assert process.returncode == -signal.SIGKILL
    assert "survived" not in output
    said = json.loads((tmp_path / "cluster" / "faults" / "0").read_text())
    assert said["step"] == 3
    assert said["phase"] == {"kill_worker": "vote", "kill_in_checkpoint": "checkpoint"}[fields["kind"]]


def test_stopped_whole(tmp_path: Path) -> None:
    process = child(tmp_path, "stop")
    try:
        wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, "it is stopped", CHILD_SECONDS)
        os.kill(process.pid, signal.SIGCONT)
        output, _ = process.communicate(timeout=CHILD_SECONDS)
        assert "survived" in output
    finally:
        process.kill()
        process.wait()


def test_deadlocked_while_other_threads_go_on(tmp_path: Path) -> None:
    process = child(tmp_path, "deadlock")
    try:
        wait_for((tmp_path / "cluster" / "faults" / "0").exists, "the fault", CHILD_SECONDS)
        assert process.stdout is not None
        beats = [process.stdout.readline().strip() for _ in range(10)]
        assert beats == ["beat"] * 10
        assert process.poll() is None
    finally:
        process.kill()
        process.wait()


def test_of_many_that_claim_a_fault_one_gets_it(tmp_path: Path) -> None:
    claims = [create_durably(tmp_path / "faults" / "7", str(number)) for number in range(3)]
    assert claims == [True, False, False]
    assert (tmp_path / "faults" / "7").read_text() == "0"


def test_a_worker_has_the_id_that_its_agent_gave_it() -> None:
    assert worker_id_of({"FROSTLINE_POD_UID": "u", "FROSTLINE_WORKER_NONCE": "n"}, "own") == "u/n"
    assert worker_id_of({"FROSTLINE_POD_UID": "u"}, "own") == "u/own"
