"""Faults change no bit of a run: a drain and resume, a killed controller or Redis, lost pods and nodes, a rollback.

Each run is compared with the undisturbed run on a single worker.
"""

import json
import math
import re
import shutil
import time
from pathlib import Path

import psutil
import pytest

from frostline_trainer.checkpoints.reading import complete_checkpoints
from tests.e2e.runs import THREE_REPLICAS, Ended, Workshop, json_lines, slowed
from tests.integration.scripted_worker import wait_for

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
    """Assert that no (lineage, number) was decided twice."""
    keys = [(decision["lineage"], decision["number"], decision["decision_kind"]) for decision in ended.decisions]
    return len(keys) == len(set(keys))


def test_ctrl_c_drains_and_resume_goes_on_in_another_shape(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    folder = tmp_path / "drained"
    # Slow steps: the command looks twice a second whether it has been asked to stop.
    running = workshop.start(folder, {"faults": slowed(13, 0.5, workers=2)}, "--workers", "3")
    running.wait_for_step(13)
    running.interrupt()
    drained = running.end()
    assert drained.code == 3, drained.story()
    assert f"frostline resume {folder}" in drained.output
    assert drained.result["status"] == "suspended"
    stopped_at = drained.result["steps"]
    assert 13 <= stopped_at < 60
    before = drained.records

    ended = workshop.resume(folder, "--workers", "2")
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert len(before) == stopped_at, "a drain ends with a vote of its own, so that the last step's record is durable too"
    assert ended.records[:stopped_at] == before, "a resumed run redoes no step of a drained one"
    assert {math.prod(record["degrees"].values()) <= 2 for record in ended.records[stopped_at:]} == {True}

    again = workshop.resume(folder)
    assert again.code == 2
    assert "has completed; there is nothing to go on with" in again.output


def test_a_killed_controller_changes_nothing(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    running = workshop.start(tmp_path / "killed", {"faults": slowed(28, 0.15, workers=2)}, "--workers", "2")
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
    # Slow steps before the fault and after it: values are stored by then, it happens at its step, and Redis comes back in time.
    faults = [{"kind": "kill_redis", "step": 20}, *slowed(15, 0.3, workers=2)]
    ended = workshop.run(tmp_path / "run", {"faults": faults}, "--workers", "2")
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    hits = [record["cache_hits"] for record in ended.records]
    assert sum(hits[18:20]) > 0
    # Up to the next freeze, at step 27, from which on other values are read.
    assert 0 in hits[ended.fault(0)["step"] : 26], hits
    assert sum(hits[-10:]) > 0, "it came back empty, and was filled again"


def check_ledger(ended: Ended, workers: int) -> None:
    """Assert that each worker-second has one use, losses and a killed controller included, within bounds by records and clock."""
    ledger, records = ended.result["ledger"], ended.records
    used, total = ledger["used"], ledger["worker_seconds"]
    assert sum(used.values()) == pytest.approx(total) and min(used.values()) >= 0.0
    in_steps = sum(record["step_seconds"] * record["degrees"]["pp"] * record["degrees"]["dp"] for record in records)
    assert used["lost"] > 0.0 and used["reshaping"] > 0.0
    # A replacement may run for a moment beside the worker that it replaces.
    assert in_steps < total < (workers + 1) * ended.result["wall_seconds"]
    assert json.loads((ended.folder / "ledger.json").read_text())["ledger"] == ledger
    assert ledger["saved_estimates"]["freezing"] > 0.0


def test_preemptions_cost_no_step(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    """Preemptions with notice, without, and with a killed controller. Four replicas hold every unit and three are taken away, so
    nothing is lost, however late their replacements come."""
    faults = [
        {"kind": "leave", "step": 8, "worker": 0},
        {"kind": "kill_worker", "step": 22, "worker": 1, "phase": "exchange"},
        {"kind": "kill_controller", "step": 34, "phase": "step"},
        {"kind": "kill_pod", "step": 46, "worker": 2},
    ]
    # All workers are members, whatever the planner finds on this machine, so that no fault hits a spare worker.
    # Slow steps, so that the last fault happens, and is recorded, before the run's end.
    changes = {"faults": [*faults, *slowed(46, 0.1, workers=4)], "placement": {"pp_degree": 1, "dp_degree": 4}}
    ended = workshop.run(tmp_path / "run", changes, "--workers", "4")
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert {record["lineage"] for record in ended.records} == {0}, ended.lines("events.jsonl")
    happened = [ended.fault(index) for index in range(4)]
    assert [fault["kind"] for fault in happened] == [fault["kind"] for fault in faults]
    assert happened[1]["step"] == 22
    reported = [event["reason"] for event in ended.events("fault") if not event["reason"].startswith("planned: slow ")]
    assert len(reported) == 4
    assert reported[1] == "planned: kill_worker of trainer-1 at step 22 in exchange"
    assert len(ended.events("failure")) >= 2, ended.lines("events.jsonl")
    check_ledger(ended, workers=4)


def test_a_reclaim_of_all_nodes_pauses_the_run_and_it_goes_on_by_itself(
    one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    """First both nodes are lost at once, then one of the two that the run needs; the controller dies while no worker runs."""
    faults = [{"kind": "leave", "step": 12, "worker": worker} for worker in (0, 1)]
    faults.append({"kind": "leave", "step": 36, "worker": 1})
    changes = {"faults": faults, "placement": {"workers": 2, "min_workers": 2, "pp_degree": 1, "dp_degree": 2}}
    running = workshop.start(tmp_path / "run", changes)
    pauses = running.wait_until(
        lambda: (
            (found := [line for line in json_lines(running.folder / "events.jsonl") if line["kind"] == "pause"])[1:] and found
        ),
        "the second pause",
    )
    for controller in running.children("frostline_controller"):
        controller.kill()
    ended = running.end()
    assert ended.digest == one_worker.digest, ended.story()
    assert ended.numerics == one_worker.numerics
    assert ended.result["status"] == "completed"
    starts = [plan for plan in ended.plans if plan["start"] == "checkpoint"]
    assert [plan["start_step"] for plan in starts] == [event["step"] for event in pauses], "no step is lost"
    assert len(ended.events("end")) == 1
    assert not ended.events("failure"), ended.lines("events.jsonl")
    texts = [event["reason"] for event in ended.events("pause")]
    assert len(texts) == 2 and all("too few workers stay" in text and "goes on by itself" in text for text in texts), texts


def test_a_spare_worker_takes_a_lost_pods_place_at_once(one_worker: Ended, workshop: Workshop, tmp_path: Path) -> None:
    """No step is computed by fewer workers, and the pod's replacement is the next spare."""
    placement = {"workers": 2, "spare_workers": 1, "pp_degree": 1, "dp_degree": 2}
    # The spare is the worker that came last: two of three are slow, so that a member is, and the third has time to join.
    faults = [{"kind": "slow", "step": 20, "worker": worker, "seconds": 0.7} for worker in (0, 1)]
    running = workshop.start(tmp_path / "run", {"placement": placement, "faults": faults})
    running.wait_for_step(18)
    log = running.folder / "logs" / "controller.log"
    running.wait_until(lambda: log.read_text().count("worker joined") == 3, "three workers")
    plans = [line for line in json_lines(running.folder / "plans.jsonl") if line["kind"] == "plan"]
    pod = plans[-1]["placement"]["workers"][1].partition("/")[0]
    spare_since = time.monotonic()
    running.wait_for_step(running.step + 2)
    spare_seconds = time.monotonic() - spare_since
    (agent,) = [one for one in running.children("frostline_trainer.process.agent") if one.environ()["FROSTLINE_POD_UID"] == pod]
    agent.kill()  # its worker ends when the agent's connection to the preload process closes
    ended = running.end()
    assert ended.digest == one_worker.digest, ended.story()
    assert ended.numerics == one_worker.numerics
    assert ended.shapes == [(1, 2)], "nobody waited for the replacement"
    (answer,) = [index for index, plan in enumerate(ended.plans) if plan["start"] == "survivors"]
    before, after = (set(ended.plans[index]["placement"]["workers"]) for index in (answer - 1, answer))
    assert (len(before), len(after), len(before & after)) == (2, 2, 1), "the spare is the second"
    assert not ended.events("join"), "the replacement is the next spare"
    check_ledger(ended, workers=3)
    assert ended.result["ledger"]["used"]["idle"] > spare_seconds, "a spare worker was there for so long before it was needed"


def test_a_node_that_was_cut_off_publishes_nothing_and_is_not_taken_back(
    one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    """The old process lives beside its replacement, learns of it when the cut has healed, and ends."""
    faults = [{"kind": "cut_node", "step": 14, "worker": 1, "seconds": 3.0}]
    changes = {"faults": faults, "placement": THREE_REPLICAS, "controller": {"dead_after_seconds": 2.0}}
    running = workshop.start(tmp_path / "run", changes, "--workers", "3")
    (cut,) = running.wait_until(lambda: list((running.folder / "cluster" / "cut").glob("[!.]*")), "the cut")
    log = (running.folder / "logs" / "trainer-1.log").read_text()
    old = int(re.findall(r"worker started local_rank=0 process=(\d+)", log)[0])
    assert psutil.pid_exists(old)
    ended = running.end()
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    assert {record["lineage"] for record in ended.records} == {0}, ended.lines("events.jsonl")
    wait_for(lambda: not psutil.pid_exists(old), "the old process is gone")
    replaced = {worker.partition("/")[0] for plan in ended.plans for worker in plan["placement"]["workers"]}
    assert cut.name in replaced, "it was a member before it was cut off"
    assert cut.name not in str(ended.plans[-1]["placement"]["workers"])


def test_a_whole_world_that_was_cut_off_publishes_no_step_of_the_new_one(
    one_worker: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    """The old members live and may train on, so their results may not count: all go back to a checkpoint, in a new epoch."""
    changes = {
        "faults": [{"kind": "cut_node", "step": 18, "worker": 0, "seconds": 6.0}],
        "placement": {"pods_per_node": 2},
        "checkpoint": {"every_steps": 5},
        "controller": {"dead_after_seconds": 2.0},
    }
    ended = workshop.run(tmp_path / "run", changes, "--workers", "2")
    assert ended.digest == one_worker.digest
    assert ended.numerics == one_worker.numerics
    restored = [plan for plan in ended.plans if plan["start"] == "checkpoint"]
    assert [(plan["run_epoch"], plan["lineage"]) for plan in restored] == [(1, 1)]
    step = restored[0]["start_step"]
    # The old members train on, and publish, until they lack a decision: none that was taken after the cut reached them.
    unreached = min(decision["effective_step"] for decision in ended.decisions if decision["decided_in"] == 1)
    assert step % 5 == 0 and 10 <= step < unreached
    taken_up = json.loads((ended.folder / "checkpoints" / "epochs" / "1.json").read_text())["from"]
    assert taken_up.startswith("0/") and taken_up.endswith(f"/{step}"), "the newest that the old world published"
    assert not [path for path in (ended.folder / "checkpoints" / "0").glob("*/*/manifest.json") if int(path.parent.name) > step]
    assert {record["lineage"] for record in ended.records if record["step"] > step} == {1}
    old = {worker.partition("/")[0] for worker in ended.plans[0]["placement"]["workers"]}
    assert {file.name for file in (ended.folder / "cluster" / "cut").iterdir()} == old
    assert old.isdisjoint(worker.partition("/")[0] for worker in restored[0]["placement"]["workers"])
    assert f"back to step {step}" in " ".join(event["reason"] for event in ended.events("failure"))


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


@pytest.mark.wide
def test_a_rollback_has_the_same_bits_on_three_workers(rolled_back: Ended, workshop: Workshop, tmp_path: Path) -> None:
    ended = workshop.run(tmp_path / "run", HURTS, "--workers", "3")
    assert ended.digest == rolled_back.digest
    assert ended.numerics == rolled_back.numerics
    replayed = workshop.run(tmp_path / "replayed", HURTS, "--workers", "2", "--replay", str(rolled_back.folder))
    assert replayed.digest == rolled_back.digest
    assert replayed.numerics == rolled_back.numerics


@pytest.mark.wide
def test_a_rollback_whose_checkpoint_is_gone_costs_steps_and_no_bit(
    rolled_back: Ended, workshop: Workshop, tmp_path: Path
) -> None:
    """As after a disk that was full at the freeze. Workers wait for it for a minute, then the run goes back further."""
    running = workshop.start(
        tmp_path / "run", {**HURTS, "faults": slowed(11, 0.5, workers=2), "checkpoint": {"every_steps": 5}}, "--workers", "2"
    )
    root, gone = tmp_path / "run" / "checkpoints", False
    while running.process.poll() is None and not gone:
        for folder, manifest in complete_checkpoints(root):
            if manifest["step"] == 10:
                shutil.rmtree(folder)
                gone = True
        time.sleep(0.01)
    ended = running.end()
    assert gone and ended.code == 0, ended.story()
    assert any("no complete checkpoint of step 10" in event["reason"] for event in ended.events("wrong_bits")), ended.story()
    assert ended.digest == rolled_back.digest
    assert ended.numerics == rolled_back.numerics


@pytest.mark.parametrize("worker", [pytest.param(0, marks=pytest.mark.wide), 1])
def test_a_member_dies_in_the_rollback_itself(rolled_back: Ended, workshop: Workshop, tmp_path: Path, worker: int) -> None:
    """The others may have gone back to the old step or not: in both cases all go on from it, in the rollback's lineage."""
    fault = {"kind": "kill_worker", "step": 11, "worker": worker, "phase": "rollback"}
    changes = {**HURTS, "faults": [fault], "placement": {"pp_degree": 3, "dp_degree": 1}}
    ended = workshop.run(tmp_path / "run", changes, "--workers", "3")
    assert ended.fault(0)["phase"] == "rollback"
    assert ended.digest == rolled_back.digest
    assert ended.numerics == rolled_back.numerics
    assert [record["freeze_point"] for record in ended.records] == [0] * 44
