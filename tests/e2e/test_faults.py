"""What befalls a run changes no bit: drained and resumed, a killed controller, a killed Redis, killed workers, a rollback.

Each run is compared with the one on a single worker that nothing befell.
"""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.e2e.runs import Ended, Workshop

HURTS = {
    # The rate grows until the model diverges, so the held-out loss after the freeze is far above the one before it.
    "training": {
        "steps": 44,
        "optimizer": {"learning_rate": 1.0},
        "schedule": {"name": "constant", "warmup_fraction": 0.99},
    },
    "freeze": {
        "policy": {"points": {1: 2, 2: 2, 3: 2, 4: 2, 5: 2}},
        "rails": {"guard_margin": 0.0, "guard_confidence": 0.8, "guard_intervals": 4},
    },
}


def decided_once(ended: Ended) -> bool:
    """No (lineage, number) was decided twice."""
    keys = [(decision["lineage"], decision["number"], decision["decision_kind"]) for decision in ended.decisions]
    return len(keys) == len(set(keys))


def test_ctrl_c_drains_and_resume_goes_on_in_another_shape(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    folder = tmp_path / "drained"
    running = workshop.start(folder, {}, "--workers", "3")
    running.wait_for_step(13)
    running.interrupt()
    drained = running.end()
    assert drained.code == 3, drained.story()
    assert f"frostline resume {folder}" in drained.output
    assert drained.result["status"] == "drained"
    stopped_at = drained.result["steps"]
    assert 13 <= stopped_at < 60
    before = drained.records

    ended = workshop.resume(folder, "--workers", "2")
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert len(before) == stopped_at, "a drain ends with a vote of its own, so that the last step's record is durable too"
    assert ended.records[:stopped_at] == before, "a resumed run redoes no step of a drained one"
    assert {(record["pp_degree"] * record["dp_degree"]) <= 2 for record in ended.records[stopped_at:]} == {True}

    again = workshop.resume(folder)
    assert again.code == 2
    assert "has completed; there is nothing to go on with" in again.output


def test_a_killed_controller_changes_nothing(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    running = workshop.start(tmp_path / "killed", {}, "--workers", "2")
    running.wait_for_step(9)
    (controller,) = running.children("frostline_controller")
    controller.kill()
    running.wait_for_step(28)
    (successor,) = running.children("frostline_controller")
    successor.kill()
    ended = running.end()
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert decided_once(ended), ended.decisions
    assert [decision["number"] for decision in ended.decisions] == [1, 2, 3, 4, 5, 6, 7]
    assert not any(decision["void"] for decision in ended.decisions)
    incarnations = {int(line["generation"]["incarnation"]) for line in ended.lines("plans.jsonl") if line["kind"] == "plan"}
    assert max(incarnations) >= 1


def test_a_killed_redis_changes_nothing_but_speed(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    ended = workshop.run(tmp_path / "run", {"faults": [{"kind": "kill_redis", "step": 20}]}, "--workers", "2")
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert sum(record["cache_hits"] for record in ended.records[-20:]) == 0


def test_killed_workers_are_replaced_and_every_step_survives_once(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    """One dies before there is a checkpoint, so the run starts afresh; another one after it, so it goes back to that."""
    running = workshop.start(tmp_path / "run", {"faults": [{"kind": "kill_worker", "step": 4, "worker": 1}]}, "--workers", "3")
    running.wait_for_step(16)
    log = (running.folder / "logs" / "trainer-0.log").read_text()
    process = int(re.findall(r"worker started local_rank=0 process=(\d+)", log)[-1])
    os.kill(process, signal.SIGKILL)
    ended = running.end()
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert [record["step"] for record in ended.records] == list(range(1, 61))
    cuts = [line["starts_at_step"] for line in ended.lines("metrics.jsonl") if "starts_at_step" in line]
    assert cuts[0] == 0
    assert cuts[-1] >= 10
    assert len(ended.events("failure")) >= 2, ended.events("failure")


@pytest.fixture(scope="module")
def rolled_back(workshop: Workshop, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return workshop.run(tmp_path_factory.mktemp("hurts") / "run", HURTS, "--workers", "1")


def test_the_guard_takes_a_freeze_that_hurts_back(rolled_back: Ended) -> None:
    assert rolled_back.code == 0, rolled_back.story()
    rollbacks = [decision for decision in rolled_back.decisions if decision["decision_kind"] == "rollback"]
    assert [decision["rollback_to_step"] for decision in rollbacks] == [10], rolled_back.decisions
    assert "exceeds the tolerated" in rollbacks[0]["reason"]
    assert rolled_back.result["lineage"] == 1
    points = [record["freeze_point"] for record in rolled_back.records]
    assert points == [0] * 44, "the boundary is quarantined: the surviving lineage never froze"
    assert [event["kind"] for event in rolled_back.events("guard")], rolled_back.lines("events.jsonl")


def test_a_rollback_has_the_same_bits_on_three_workers(rolled_back: Ended, workshop: Workshop, tmp_path: Path) -> None:
    ended = workshop.run(tmp_path / "run", HURTS, "--workers", "3")
    assert ended.digest == rolled_back.digest
    assert ended.numerics == rolled_back.numerics
    replayed = workshop.run(tmp_path / "replayed", HURTS, "--workers", "2", "--replay", str(rolled_back.folder))
    assert replayed.digest == rolled_back.digest
    assert replayed.numerics == rolled_back.numerics
