"""A controller's write fails once, or stalls: no message that it received is lost; nothing is done or sent twice."""

import fcntl
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from frostline_contract.annotations import COMMAND
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.run.durable import read_state
from frostline_proto.v1 import control_pb2 as pb
from tests.integration import faulty_controller
from tests.integration.scripted_worker import record, statistics, stop, wait_for
from tests.integration.scripted_world import World, world
from tests.integration.test_controller_restart import FREEZE_AT_1

__all__ = ["world"]
WIDE = {
    "placement": {"workers": 3, "min_workers": 1, "dp_degree": 3, "pp_degree": 1},
    "controller": {"start_timeout_seconds": 5.0, "join_settle_seconds": 0.2, "join_pause_seconds": 0.2},
}


@pytest.fixture
def faulty(world: Callable[..., World]) -> Callable[..., World]:
    """Return a function that makes a run whose two workers are at step 3 of the first plan."""

    def make(step: int = 3, **sections: object) -> World:
        run = world(script="faulty_controller.py", **sections)
        run.start()
        run.at(step)
        wait_for(lambda: [line for line in run.lines("events.jsonl") if line["kind"] == "start"], "the start is told")
        return run

    return make


def reported(run: World, kind: str) -> list[str]:
    return [line["reason"] for line in run.lines("events.jsonl") if line["kind"] == kind]


def steps(run: World) -> list[int]:
    return [line["step"] for line in run.lines("metrics.jsonl")]


def test_records_whose_sender_was_cut_off_while_they_were_written_are_written_once(faulty: Callable[..., World]) -> None:
    run = faulty()
    first, second = run.workers
    run.plant("metrics.jsonl", delay=4.0, fails=False)
    slow = threading.Thread(target=lambda: first.records(record(1), record(2), record(3)))
    slow.start()
    run.met("metrics.jsonl")
    request = pb.ReportRecordsRequest(worker_id=second.worker_id, records=[record(4), record(5)], generation=second.generation)
    with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
        second.stub.ReportRecords(request, timeout=0.5)
    slow.join()
    assert first.records(record(4), record(5)).durable_step == 5
    assert first.records(record(6)).durable_step == 6
    assert steps(run) == [1, 2, 3, 4, 5, 6]


def test_records_whose_write_failed_after_their_sender_had_gone_are_not_held(faulty: Callable[..., World]) -> None:
    run = faulty()
    first = run.workers[0]
    run.plant("metrics.jsonl", delay=4.0)
    request = pb.ReportRecordsRequest(worker_id=first.worker_id, records=[record(1), record(2)], generation=first.generation)
    call = first.stub.ReportRecords.future(request)
    run.met("metrics.jsonl")
    assert call.cancel(), "it is being written"
    assert first.records(record(3)).durable_step == 0
    assert first.records(record(1), record(2)).durable_step == 3
    assert sorted(steps(run)) == [1, 2, 3]


def test_events_are_acknowledged_when_they_are_written(faulty: Callable[..., World]) -> None:
    run = faulty()
    events = [pb.RunEvent(kind="checkpoint", step=step, reason=f"checkpoint {step}") for step in (1, 2, 3)]
    strange = pb.RunEvent(kind="eclipse", step=1, reason="of a newer worker")
    run.plant("events.jsonl")
    with pytest.raises(grpc.RpcError):
        run.workers[0].records(events=[strange, *events])
    run.workers[0].records(events=[strange, *events])
    run.workers[1].records(events=events)
    assert reported(run, "checkpoint") == ["checkpoint 1", "checkpoint 2", "checkpoint 3"]
    assert run.controller.poll() is None
    assert "event of an unknown kind='eclipse'" in (run.folder / "controller.log").read_text()


@pytest.mark.parametrize("place", ["plans.jsonl", "state"])
def test_the_first_plan_is_told_though_a_write_failed(world: Callable[..., World], place: str) -> None:
    run = world(script="faulty_controller.py")
    run.plant(place, times=2)
    plan = run.start()
    assert str(plan.generation) == "1.1"
    run.met(place)
    wait_for(lambda: reported(run, "start"), "the start is told")
    assert [line["kind"] for line in run.lines("plans.jsonl")] == ["plan"]


def test_a_joiner_is_taken_in_and_a_leaver_let_go_though_the_plan_could_not_be_written(faulty: Callable[..., World]) -> None:
    run = faulty(**WIDE)
    run.plant("state")
    (joiner,) = run.join(1)
    wide = run.workers[0].next_plan("continue")
    assert joiner.worker_id in wide.placement.workers
    run.met("state")
    for worker in run.workers:
        worker.ready(wide)
    run.workers[0].next("ready")
    for worker in run.workers:
        worker.enter(wide, 6)
    wait_for(lambda: run.operator.status().generation.counter == wide.generation.counter, "the switch is known")
    run.plant("state")
    joiner.stub.Leave(pb.LeaveRequest(worker_id=joiner.worker_id, reason="SIGTERM"), timeout=60)
    assert joiner.worker_id not in run.workers[0].next_plan("continue").placement.workers
    run.met("state")


def test_a_switch_is_told_once_however_often_it_could_not_be_written(faulty: Callable[..., World]) -> None:
    run = faulty()
    run.operator.command("reshape", pp_degree=2, dp_degree=1)
    plan = run.workers[0].next_plan("continue")
    for worker in run.workers:
        worker.ready(plan)
    run.workers[0].next("ready")
    run.plant("state", times=3)
    for worker in run.workers:
        worker.enter(plan, 6)
    wait_for(lambda: reported(run, "reshape"), "the switch is told")
    assert [line["kind"] for line in run.lines("plans.jsonl")] == ["plan", "plan_end", "plan"]


def test_commands_are_carried_out_though_their_state_could_not_be_written(faulty: Callable[..., World]) -> None:
    run = faulty()
    run.plant("state")
    run.operator.command("freeze", freeze_point=2)
    wait_for(
        lambda: reported(run, "command") == ["freeze by command: freeze point 2 with the next decision"], "the freeze is told"
    )
    run.plant("state")
    run.operator.command("reshape", pp_degree=2, dp_degree=1)
    assert run.workers[0].next_plan("continue").placement.pp_degree == 2
    run.plant("state")
    LocalBackend(run.folder / "cluster").patch_annotations({COMMAND: "suspend"}, {})
    for worker in run.workers:
        assert worker.next("drain").reason == "suspend by command"
    wait_for(lambda: COMMAND not in LocalBackend(run.folder / "cluster").read().annotations, "the command is removed")
    wait_for(lambda: len(reported(run, "command")) == 3, "all are told")
    assert reported(run, "command")[1:] == ["reshape by command: pp 2 x dp 1", "suspend by command"]


def test_a_command_is_answered_when_it_is_durable_and_not_before(faulty: Callable[..., World]) -> None:
    """A controller that dies right after the answer: its successor knows of the command."""
    run = faulty()
    run.plant("state", delay=1.5, fails=False)
    began = time.monotonic()
    run.operator.command("freeze", freeze_point=2)
    assert time.monotonic() - began >= 1.5
    run.controller.kill()
    assert read_state(LocalBackend(run.folder / "cluster").read()).forced_freeze_point == 2


def test_two_members_that_leave_are_both_paused_for(faulty: Callable[..., World]) -> None:
    run = faulty(placement={"workers": 2, "min_workers": 2})
    run.plant("state")
    for worker in run.workers:
        worker.stub.Leave(pb.LeaveRequest(worker_id=worker.worker_id, reason="SIGTERM"), timeout=60)
    assert "too few workers stay" in run.workers[0].next("drain").reason
    wait_for(lambda: {worker.state for worker in run.operator.status().workers} == {"leaving"}, "both are leaving")
    run.plant("state")
    run.checkpoint(3)
    run.workers[0].records(outcome=pb.RunOutcome(status="suspended", steps=3))
    for worker in run.workers:
        assert "goes on by itself from step 3" in worker.next("end").reason
    assert len(reported(run, "pause")) == 1, "told once, though it could not be written at once"


def test_a_decision_in_force_gets_its_line_and_its_end_one_event(faulty: Callable[..., World]) -> None:
    run = faulty(step=9, freeze=FREEZE_AT_1)
    run.plant("plans.jsonl", times=2)
    run.workers[0].report(statistics(1))
    assert run.workers[1].next("decision").freeze_point == 2
    wait_for(lambda: [line for line in run.lines("plans.jsonl") if line["kind"] == "decision"], "its line is written")
    run.plant("result.json", times=4)
    run.workers[0].records(outcome=pb.RunOutcome(status="completed", digest="d" * 64, steps=64))
    assert "completed" in run.workers[1].next("end").reason
    result = json.loads((run.folder / "result.json").read_text())
    assert [event["kind"] for event in result["events"]].count("end") == 1
    assert len(reported(run, "end")) == 1
    assert [line["kind"] for line in run.lines("plans.jsonl")] == ["plan", "decision", "plan_end"]


def test_a_run_ends_when_its_history_has_each_decision(faulty: Callable[..., World]) -> None:
    run = faulty(step=9, freeze=FREEZE_AT_1)
    run.plant("plans.jsonl", times=5)
    run.workers[0].report(statistics(1))
    assert run.workers[1].next("decision").freeze_point == 2
    run.workers[0].records(outcome=pb.RunOutcome(status="completed", digest="d" * 64, steps=64))
    assert "completed" in run.workers[1].next("end").reason
    assert [line["kind"] for line in run.lines("plans.jsonl")] == ["plan", "decision", "plan_end"]


@pytest.mark.parametrize("place", ["state", "plans.jsonl", "controller.address"])
def test_a_controller_that_cannot_write_while_it_starts_tries_again(faulty: Callable[..., World], place: str) -> None:
    """It lives, its workers come back to it, and its next plan reaches them: a full disk is nobody's mistake."""
    run = faulty()
    run.controller.kill()
    (run.folder / "plans.jsonl").write_text("")  # as a crash between the state and the plan's line would leave it
    run.plant(place, times=3)
    run.restart_controller()
    run.met(place)
    for worker in run.workers:
        worker.connect_again()
    assert run.operator.status().incarnation == 2, "one take-over, however often it was tried"
    run.operator.command("reshape", pp_degree=2, dp_degree=1)
    plan = run.workers[0].next_plan("continue")
    assert (plan.generation.incarnation, plan.placement.pp_degree) == (2, 2)
    assert not reported(run, "failure"), "the time for which workers are awaited begins when they can reach it"
    assert [line["kind"] for line in run.lines("plans.jsonl")] == ["plan"]
    said = (run.folder / "controller.log").read_text()
    assert said.count("No space left on device (planted at ") >= 3 and "free some space" in said
    assert stop(run.controller) == 0


def test_a_resume_that_could_not_be_written_at_once_is_a_resume(faulty: Callable[..., World]) -> None:
    run = faulty(freeze=FREEZE_AT_1)
    run.checkpoint(3)
    run.workers[0].records(outcome=pb.RunOutcome(status="suspended", steps=3))
    run.operator.command("suspend")
    for worker in run.workers:
        worker.next("end")
        worker.silence()
    wait_for(lambda: run.operator.status().state == "suspended", "the run is suspended")
    run.plant("state", times=4)
    run.restart_controller("--resume")
    run.met("state")
    assert run.operator.status().state == "waiting"


def test_a_controller_that_waits_for_room_ends_when_it_is_told_to(faulty: Callable[..., World]) -> None:
    run = faulty()
    run.controller.kill()
    run.controller.wait(60)
    run.plant("state", times=1000)
    log = run.folder / "controller.log"
    with open(log, "ab") as file:
        script = str(Path(faulty_controller.__file__))
        waiting = subprocess.Popen([sys.executable, script, "--run-dir", str(run.folder)], stdout=file, stderr=file)
    wait_for(lambda: "trying again in" in log.read_text() or waiting.poll() is not None, "it waits")
    assert stop(waiting) == 0


def test_a_lock_that_somebody_holds_is_waited_for(faulty: Callable[..., World]) -> None:
    run = faulty()
    run.controller.kill()
    run.controller.wait(60)

    def waited() -> bool:
        return "end or continue the process that holds it" in (run.folder / "controller.log").read_text()

    def hold() -> None:
        with open(run.folder / "cluster" / "statefulset.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held.set()
            wait_for(waited, "the controller waits for the lock")

    held, holder = threading.Event(), threading.Thread(target=hold)
    holder.start()
    held.wait()
    run.restart_controller()
    holder.join()
    assert waited()
    assert run.operator.status().incarnation == 2
