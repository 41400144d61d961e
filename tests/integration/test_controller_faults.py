"""Planned faults that the controller injects: on pods, nodes, services and itself, each once, each with an event."""

import contextlib
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import grpc
import pytest

from frostline_contract.durable_files import create_durably
from frostline_controller.cluster.backend import RUNNING, PodInfo
from frostline_controller.cluster.local.backend import LocalBackend
from tests.integration.scripted_worker import wait_for
from tests.integration.scripted_world import World, world

__all__ = ["world"]


def put_pods(world: World, count: int = 2, per_node: int = 2) -> LocalBackend:
    """Create the scripted workers' pods, `per_node` of them on each node."""
    backend = LocalBackend(world.folder / "cluster")
    pods = [asdict(PodInfo(f"trainer-{i}", f"uid-{i}", f"node-{i // per_node}", RUNNING, 1.0, True)) for i in range(count)]
    backend.change(lambda found: found["status"].update(pods=pods))
    return backend


def said(world: World, index: int) -> dict[str, Any] | None:
    path = world.folder / "cluster" / "faults" / str(index)
    return json.loads(path.read_text()) if path.exists() else None


@pytest.mark.parametrize(
    ("kind", "pods", "grace"), [("kill_pod", ["trainer-1"], 0.0), ("leave", ["trainer-1"], 15.0)], ids=["kill_pod", "leave"]
)
def test_a_pod_is_deleted_at_its_step_once(
    world: Callable[..., World],
    kind: str,
    pods: list[str],
    grace: float,
) -> None:
    made = world(faults=[{"kind": kind, "step": 5, "worker": 1}])
    made.start()
    backend = put_pods(made)
    made.at(4)
    wait_for(lambda: made.operator.status().step == 4, "step 4 is known")
    assert said(made, 0) is None
    made.at(5)
    (asked,) = wait_for(lambda: backend.read_object()["spec"]["deletions"], "a deletion")
    assert asked == {"name": "trainer-1", "uid": "uid-1", "grace_seconds": grace}
    record = wait_for(lambda: said(made, 0), "the fault's file")
    assert (record["kind"], record["pods"], record["step"]) == (kind, pods, 5)
    assert record["worker_ids"] == [made.workers[1].worker_id]
    event = wait_for(lambda: made.events("fault"), "its event")
    assert [(line["reason"], line["step"]) for line in event] == [(f"planned: {kind} of trainer-1 at step 5 in step", 5)]
    made.at(7)
    wait_for(lambda: made.operator.status().step == 7, "step 7 is known")
    assert len(backend.read_object()["spec"]["deletions"]) == 1


def test_a_member_that_a_successor_has_not_met_is_named_too(world: Callable[..., World]) -> None:
    """Chaos, seed 20263311: a node was cut off before its member had come back, and nobody was named."""
    made = world(faults=[{"kind": "kill_pod", "step": 5, "worker": 1}])
    made.start()
    put_pods(made)
    made.at(4)
    away = made.workers[1]
    away.silence()
    made.restart_controller()
    here = made.workers[0]
    here.connect_again()
    here.heartbeat(5)
    assert wait_for(lambda: said(made, 0), "the fault's file")["worker_ids"] == [away.worker_id]


@pytest.mark.parametrize("kind", ["kill_node", "cut_node"])
def test_a_node_takes_all_its_pods(world: Callable[..., World], kind: str) -> None:
    made = world(faults=[{"kind": kind, "step": 2, "worker": 1, "seconds": 3.5}])
    made.start()
    backend = put_pods(made)
    made.at(2)
    (asked,) = wait_for(lambda: backend.read_object()["spec"]["breakages"], "a breakage")
    assert asked == {"kind": kind, "pod": "trainer-1", "seconds": 3.5}
    record = said(made, 0)
    assert record["pods"] == ["trainer-1", "trainer-0"]
    assert sorted(record["worker_ids"]) == sorted(worker.worker_id for worker in made.workers)


@pytest.mark.parametrize("kind", ["kill_redis", "kill_cache_server"])
def test_a_service_is_killed_by_the_cluster(world: Callable[..., World], kind: str) -> None:
    made = world(faults=[{"kind": kind, "step": 2}])
    made.start()
    backend = put_pods(made)
    made.at(3)
    (asked,) = wait_for(lambda: backend.read_object()["spec"]["breakages"], "a breakage")
    assert (asked["kind"], asked["pod"]) == (kind, "")
    assert said(made, 0)["pods"] == []


def test_a_fault_of_a_pod_that_is_not_there_waits_for_it(world: Callable[..., World]) -> None:
    made = world(faults=[{"kind": "kill_pod", "step": 2, "worker": 1}])
    made.start()
    backend = put_pods(made, count=1)
    made.at(3)
    wait_for(lambda: made.operator.status().step == 3, "step 3 is known")
    assert said(made, 0) is None
    put_pods(made)
    wait_for(lambda: backend.read_object()["spec"]["deletions"], "a deletion")


def test_what_a_worker_did_to_itself_is_told_once(world: Callable[..., World]) -> None:
    made = world(faults=[{"kind": "kill_worker", "step": 2, "worker": 1, "phase": "vote"}])
    made.start()
    record = {"index": 0, "kind": "kill_worker", "pods": ["trainer-1"], "step": 2, "phase": "vote"}
    create_durably(made.folder / "cluster" / "faults" / "0", json.dumps(record))
    made.at(3)

    def events() -> list[str]:
        return [event["reason"] for event in made.events("fault")]

    assert wait_for(events, "its event") == ["planned: kill_worker of trainer-1 at step 2 in vote"]
    made.restart_controller()
    for worker in made.workers:
        worker.connect()
        worker.register()
    made.at(5)
    wait_for(lambda: made.operator.status().step == 5, "step 5 is known to the successor")
    assert len(events()) == 1


def test_the_controller_kills_itself_at_its_step_and_its_successor_lives(world: Callable[..., World]) -> None:
    made = world(faults=[{"kind": "kill_controller", "step": 4, "phase": "step"}])
    made.start()
    made.at(3)
    wait_for(lambda: made.operator.status().step == 3, "step 3 is known")
    assert made.controller.poll() is None
    with contextlib.suppress(grpc.RpcError):  # the controller dies at the step's first message; the next may fail
        made.at(4)
    assert made.controller.wait(60) == -9
    made.restart_controller()
    for worker in made.workers:
        worker.connect()
        worker.register()
    made.at(6)
    wait_for(lambda: made.operator.status().step == 6, "step 6 is known to the successor")
    assert made.controller.poll() is None
    reported = [event["reason"] for event in made.events("fault")]
    assert reported == ["planned: kill_controller at step 4 in step"]


@pytest.mark.parametrize(("phase", "received"), [("planned", False), ("announced", True)])
def test_the_controller_dies_before_or_after_a_plan_is_heard(world: Callable[..., World], phase: str, received: bool) -> None:
    made = world(faults=[{"kind": "kill_controller", "step": 4, "phase": phase}])
    made.start()
    made.at(5)
    wait_for(lambda: made.operator.status().step == 5, "step 5 is known")
    assert made.controller.poll() is None, "there was no plan at step 4 or later yet"
    made.operator.command("reshape", pp_degree=2, dp_degree=1)
    assert made.controller.wait(60) == -9
    if received:
        assert str(made.workers[0].next_plan("continue").generation) == "1.2"
    else:
        kinds = {message.WhichOneof("message") for message in made.workers[0].messages.queue}
        assert "plan" not in kinds
    made.restart_controller()
    made.workers[0].connect()
    made.workers[0].register()
    made.workers[0].watch()
    assert str(made.workers[0].next_plan("continue").generation) == "1.2", "made by the first, announced by the second"
    assert said(made, 0)["phase"] == phase


def test_the_controller_dies_while_it_answers_a_failure(world: Callable[..., World]) -> None:
    made = world(faults=[{"kind": "kill_controller", "step": 4, "phase": "recovering"}])
    plan = made.start()
    made.at(5)
    wait_for(lambda: made.operator.status().step == 5, "step 5 is known")
    assert made.controller.poll() is None
    made.workers[0].recover(plan, 5)
    assert made.controller.wait(60) == -9
    assert made.workers[1].next("fence").generation.counter == plan.generation.counter
    assert said(made, 0)["phase"] == "recovering"
