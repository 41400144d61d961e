"""Workers that cannot start: before the run trains the job is wrong, afterwards only the pod; the others train on."""

import json
from collections.abc import Callable

import grpc
import pytest

from frostline_controller.members.start_failures import TRIES
from frostline_proto.v1 import control_pb2 as pb
from tests.integration.recovery_world import QUICK, UNITS, answer_to, started
from tests.integration.scripted_worker import ScriptedWorker, wait_for
from tests.integration.scripted_world import World, world

__all__ = ["world"]

LOST = "data.csv: no such file; mount the data"


def mistake(run: World, worker: ScriptedWorker, text: str = LOST) -> None:
    """Report a mistake as a worker process does before it ends with code 2, whether it has registered or not."""
    request = pb.LeaveRequest(worker_id=worker.worker_id, reason="ended", ended=True, error=text, user_mistake=True)
    worker.stub.Leave(request, timeout=60)


def reported(run: World) -> list[str]:
    return [event["reason"] for event in run.events("cannot_start")]


def test_one_pods_mistake_is_told_and_the_others_train_on(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller={**QUICK, "join_settle_seconds": 0.0})
    plan = started(run, 2)
    survivor, dead = run.members(plan)
    dead.silence()
    mistake(run, dead)
    survivor.recover(plan, 20, UNITS)
    answer = answer_to(plan, survivor)
    survivor.enter(answer, 20)
    survivor.heartbeat(23)
    replacement = ScriptedWorker(run.folder, dead.ordinal)
    replacement.weights = "of another model"
    with pytest.raises(grpc.RpcError):
        replacement.register()
    wait_for(lambda: len(reported(run)) == 2, "both are told, each once")
    assert reported(run)[0] == f"trainer-{dead.ordinal} cannot start: {LOST}; it is tried again"
    assert "initial weights are 'of another m'" in reported(run)[1]
    message = f"1 workers cannot start: trainer-{dead.ordinal}: initial weights"
    wait_for(lambda: run.operator.status().message.startswith(message), "the status says so a moment after the event")
    assert run.operator.status().state == "running"
    replacement.channel.close()
    run.workers.append(ScriptedWorker(run.folder, dead.ordinal).join())
    wait_for(lambda: "cannot start" not in run.operator.status().message, "a worker of that pod is there again")


def test_two_mistakes_that_come_while_an_event_is_written_are_both_announced(world: Callable[..., World]) -> None:
    """A slow disk: the controller takes both up in one round."""
    run = world(script="faulty_controller.py", placement={"workers": 2}, controller=QUICK)
    plan = started(run, 2)
    survivor, dead = run.members(plan)
    run.plant("events.jsonl", delay=2.0, fails=False)
    run.kill(dead)
    survivor.recover(plan, 20, UNITS)
    survivor.enter(answer_to(plan, survivor), 20)
    run.met("events.jsonl")
    other = "labels.csv: no such file; mount the labels"
    for text in (LOST, LOST, other):
        mistake(run, dead, text)
    wait_for(lambda: len(reported(run)) == 2, "both are announced, each once")
    assert reported(run) == [f"trainer-{dead.ordinal} cannot start: {text}; it is tried again" for text in (LOST, other)]


def test_too_few_that_can_start_end_the_run_after_some_tries(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2, "min_workers": 2}, controller=QUICK)
    plan = started(run, 2)
    survivor, dead = run.members(plan)
    dead.silence()
    mistake(run, dead)
    survivor.recover(plan, 20, UNITS)
    for _ in range(TRIES - 2):
        mistake(run, ScriptedWorker(run.folder, dead.ordinal, uid=f"uid-{dead.ordinal}"))
    wait_for(lambda: "cannot start" in run.operator.status().message, "it is said")
    assert run.operator.status().state == "running"
    mistake(run, ScriptedWorker(run.folder, dead.ordinal, uid=f"uid-{dead.ordinal}"))
    assert "too few workers are left: 1 workers cannot start: " in survivor.next("end").reason
    result = json.loads((run.folder / "result.json").read_text())
    assert result["user_mistake"]
    assert LOST in result["message"]
    run.operator.command("resume")
    run.join(1)
    assert survivor.next_plan("fresh").start == "fresh", "a run that is resumed is not judged by what was"


def test_before_the_run_trains_one_mistake_ends_it_at_once(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    waiting, other = run.join(1)[0], ScriptedWorker(run.folder, 1)
    mistake(run, other)
    assert waiting.next("end").reason == LOST
    other.channel.close()
