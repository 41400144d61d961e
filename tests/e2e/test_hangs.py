"""Hangs and slowness in whole runs: a hanging worker is excluded in time and replaced, a slow one is kept, and no bit changes."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.runs import THREE_REPLICAS, Ended, Running, Workshop

FLOOR = 5.0
WATCHED = {"heartbeat_seconds": 0.1, "dead_after_seconds": 30.0, "hang_floor_seconds": FLOOR}
PROMISED_SECONDS, RUNS = 2.0, 3
"""Most seconds from the deadline to a plan without the worker that hangs, and most runs in which they are measured: the machine's
other processes only add to them, so the fastest run is nearest to the system's own share."""
LOADED_STEPS = 200
"""More steps than a run takes in 20 s while other processes use the cores, so that the run is under load all the time."""
DIES_BY_ITSELF = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"


def fault_of(folder: Path, index: int = 0) -> dict[str, Any] | None:
    """Return the record that was written right before a fault happened, or None."""
    path = folder / "cluster" / "faults" / str(index)
    return json.loads(path.read_text()) if path.exists() else None


def excluded_after(running: Running) -> float:
    """Return the seconds from the fault to the durable plan without the affected worker."""
    fault = running.wait_until(lambda: fault_of(running.folder), "the fault")
    (victim,) = fault["worker_ids"]

    def goes_on_without() -> bool:
        plans = [line for line in Ended(running.folder, 0, "").lines("plans.jsonl") if line["kind"] == "plan"]
        named = [victim in plan["placement"]["workers"] for plan in plans]
        return True in named and not named[-1]

    running.wait_until(goes_on_without, "a plan without the worker that hangs")
    return time.time() - fault["time_seconds"]


@pytest.mark.parametrize(
    ("kind", "phase"),
    [
        ("deadlock", "schedule"),
        pytest.param("deadlock", "commit", marks=pytest.mark.wide),
        pytest.param("stop", "exchange", marks=pytest.mark.wide),
        pytest.param("stop", "vote", marks=pytest.mark.wide),
    ],
)
def test_who_hangs_is_excluded_in_time(one_worker: Ended, workshop: Workshop, tmp_path: Path, kind: str, phase: str) -> None:
    late: list[float] = []
    while not late or (min(late) >= PROMISED_SECONDS and len(late) < RUNS):
        late.append(seconds_late(workshop, tmp_path / f"run{len(late)}", one_worker, kind, phase))
    assert min(late) < PROMISED_SECONDS, late


def seconds_late(workshop: Workshop, folder: Path, one_worker: Ended, kind: str, phase: str) -> float:
    """Assert all else about a run with a worker that hangs; return the seconds from the deadline to the plan without it."""
    fault = {"kind": kind, "step": 14, "worker": 1, "phase": phase}
    changes = {"faults": [fault], "controller": WATCHED, "placement": THREE_REPLICAS}
    running = workshop.start(folder, changes, "--workers", "3")
    seconds = excluded_after(running)
    ended = running.end()
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    (hang,) = ended.events("hang")
    deadline = hang["detail"]["deadline_seconds"]
    longest = max(record["step_seconds"] for record in ended.records)
    assert FLOOR <= deadline <= max(FLOOR, 10 * longest), "a few durations count twice, and five times that is the deadline"
    assert deadline <= seconds
    assert hang["detail"]["worker"] == fault_of(folder)["worker_ids"][0]
    assert hang["detail"]["pod"].endswith("-1")
    assert hang["seconds"] >= deadline
    if kind == "deadlock":
        assert hang["reason"].startswith(f"worker {hang['detail']['pod']} hangs in {phase} after step 13, for ")
        assert "thread MainThread" in hang["detail"]["stack"]
        assert "faults/of_worker.py" in hang["detail"]["stack"], "its stack says where it hangs"
    else:
        assert "is silent for" in hang["reason"]
        assert hang["detail"]["stack"] == ""
    (failure,) = ended.events("failure")
    assert failure["lost_steps"] == 0, failure["reason"]
    return seconds - deadline


def test_who_hangs_is_replaced_where_the_run_cannot_do_without(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    fault = {"kind": "deadlock", "step": 14, "worker": 1, "phase": "schedule"}
    placement = {"workers": 2, "min_workers": 2, "pp_degree": 2, "dp_degree": 1}
    changes = {"faults": [fault], "controller": WATCHED, "placement": placement}
    ended = workshop.run(tmp_path / "run", changes, "--workers", "2")
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    (failure,) = ended.events("failure")
    assert failure["lost_steps"] == 0, failure["reason"]


def test_a_slow_worker_is_measured_and_let_be(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    fault = {"kind": "slow", "step": 12, "worker": 1, "phase": "schedule", "seconds": 0.5}
    # A worker that the machine does not run for a moment is no hang here.
    changes = {"faults": [fault], "controller": {**WATCHED, "hang_floor_seconds": 30.0}, "placement": THREE_REPLICAS}
    running = workshop.start(tmp_path / "run", changes, "--workers", "3")
    running.wait_for_step(12)

    def slowest() -> tuple[float, str]:
        status = json.loads(workshop.command("status", str(tmp_path / "run"), "--json").stdout)
        members = [worker for worker in status["workers"] if worker["state"] == "member"]
        measured = [(worker["slowness"] or 0.0, worker["pod_name"]) for worker in members]  # null: not measured yet
        return max(measured, default=(0.0, ""))  # none while all are being replaced

    running.wait_until(lambda: (one := slowest())[0] > 2.0 and one[1].endswith("-1"), "the slow worker in the status")
    ended = running.end()
    assert ended.digest == one_worker.digest
    assert ended.events("hang") == ended.events("failure") == []


@pytest.mark.wide
@pytest.mark.parametrize("floor", [5.0, 60.0])
def test_no_false_kill_while_others_take_the_cores(workshop: Workshop, tmp_path: Path, floor: float) -> None:
    controller = {"heartbeat_seconds": 0.1, "dead_after_seconds": 30.0, "hang_floor_seconds": floor}
    changes = {"training": {"steps": LOADED_STEPS}, "controller": controller}
    running = workshop.start(tmp_path / "run", changes, "--workers", "3")
    running.wait_for_step(2)
    greedy = [subprocess.Popen([sys.executable, "-c", DIES_BY_ITSELF]) for _ in range(3)]
    began = time.monotonic()
    running.wait_until(lambda: time.monotonic() - began > 20 or running.step >= LOADED_STEPS, "20 s under load")
    for process in greedy:
        process.kill()
        process.wait()
    ended = running.end()
    assert ended.code == 0, ended.story()
    assert ended.result["steps"] == LOADED_STEPS
    assert ended.events("hang") == ended.events("failure") == []
