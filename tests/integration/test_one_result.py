"""A run has one result: it is claimed on the epoch object before it is announced (docs/protocols.md 5.6)."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from frostline_contract.plan import GenerationId
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.run.durable import DurableStore
from frostline_controller.run.epochs import current_epoch, raise_epoch
from frostline_proto.v1 import control_pb2 as pb
from tests.integration.scripted_worker import Operator, ScriptedWorker, make_run, start_controller, stop, wait_for
from tests.integration.scripted_world import World, world
from tests.integration.test_controller_restart import start_killed_controller

__all__ = ["world"]


def outcome(digest: str, status: str = "completed") -> pb.RunOutcome:
    return pb.RunOutcome(status=status, digest=digest * 64, final={"loss": 0.1 + 0.2}, steps=64)


def hand_in(worker: ScriptedWorker, digest: str, status: str = "completed") -> bool:
    """Report the outcome; return True where it was acknowledged."""
    try:
        worker.records(outcome=outcome(digest, status))
    except grpc.RpcError:
        return False
    return True


def result(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def test_a_result_that_was_claimed_and_not_written_is_the_one_that_the_successor_writes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    first = start_killed_controller(folder, "claimed")
    worker = ScriptedWorker(folder, 0).join()
    other = ScriptedWorker(folder, 1).join()
    plan = worker.next_plan("fresh")
    for one in (worker, other):
        one.enter(plan, 0)
    hand_in(worker, "a")
    assert first.wait(60) == -9
    assert not (folder / "result.json").exists()
    second = start_controller(folder)
    try:
        for one in (worker, other):
            one.connect()
            one.register()
            one.watch()
        worker.records(outcome=outcome("b"))
        assert "completed" in worker.next("end", 60.0).reason
        assert (result(folder)["digest"], result(folder)["final"]) == ("a" * 64, {"loss": 0.1 + 0.2})
        assert current_epoch(folder / "checkpoints").version == 1
    finally:
        stop(second)
        for one in (worker, other):
            one.close()


@pytest.mark.parametrize("plan_of_a_new_epoch", [False, True], ids=["in its epoch", "with a plan that never began"])
@pytest.mark.parametrize("extra", [(), ("--resume",)], ids=["restarted", "resumed"])
def test_a_result_that_was_claimed_is_written_though_nobody_is_left(
    tmp_path: Path, extra: tuple[str, ...], plan_of_a_new_epoch: bool
) -> None:
    folder = make_run(tmp_path / "run")
    first = start_killed_controller(folder, "claimed")
    workers = [ScriptedWorker(folder, ordinal).join() for ordinal in range(2)]
    plan = workers[0].next_plan("fresh")
    for worker in workers:
        worker.enter(plan, 0)
    hand_in(workers[0], "a")
    assert first.wait(60) == -9
    for worker in workers:
        worker.close()
    if plan_of_a_new_epoch:
        store = DurableStore(LocalBackend(folder / "cluster"))
        found, _ = store.take_over()
        late = plan.model_copy(update={"run_epoch": 1, "generation": GenerationId(incarnation=found.incarnation, counter=2)})
        store.write(found, found.model_copy(update={"current": late, "counter": 2}))
    second = start_controller(folder, *extra)
    operator = Operator(folder)
    try:
        wait_for(lambda: operator.status().state == "completed", "the run has ended")
        assert (result(folder)["status"], result(folder)["digest"]) == ("completed", "a" * 64)
        events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
        assert [event["kind"] for event in events].count("end") == 1
    finally:
        operator.close()
        stop(second)


def test_a_controller_whose_epoch_is_over_publishes_no_result(world: Callable[..., World]) -> None:
    run = world()
    plan = run.start()
    elsewhere = plan.model_copy(update={"run_epoch": 1, "generation": plan.generation.model_copy(update={"incarnation": 9})})
    raise_epoch(run.folder / "checkpoints", elsewhere)
    assert not hand_in(run.workers[0], "a")
    assert run.controller.wait(60) == 4, "another one leads"
    assert not (run.folder / "result.json").exists()
    assert current_epoch(run.folder / "checkpoints").result is None


def test_a_run_that_is_resumed_can_end_anew_and_a_root_that_was_used_before_does_not_end_it(
    world: Callable[..., World], tmp_path: Path
) -> None:
    root = tmp_path / "elsewhere"
    run = world(checkpoint={"uri": str(root)})
    run.start()
    run.operator.command("suspend")
    run.workers[0].records(outcome=outcome("a", "suspended"))
    wait_for(lambda: run.operator.status().state == "suspended", "suspended")
    stands = current_epoch(root).result
    assert stands is not None and stands["status"] == "suspended"
    run.operator.command("resume")
    wait_for(lambda: current_epoch(root).result is None, "reopened")
    stop(run.controller)
    again = World(tmp_path / "again", checkpoint={"uri": str(root)})
    try:
        again.start()
        again.workers[0].records(outcome=outcome("b"))
        assert "completed" in again.workers[0].next("end", 60.0).reason
        assert result(again.folder)["digest"] == "b" * 64
    finally:
        again.close()
    third = World(tmp_path / "third", checkpoint={"uri": str(root)})
    try:
        third.start()
        third.workers[0].records(outcome=outcome("c"))
        assert "completed" in third.workers[0].next("end", 60.0).reason
        assert result(third.folder)["digest"] == "c" * 64
    finally:
        third.close()


@pytest.mark.parametrize(("status", "reported"), [("failed", True), ("completed", False)])
def test_a_place_that_cannot_be_written_keeps_no_failure_from_being_told(
    world: Callable[..., World], tmp_path: Path, status: str, reported: bool
) -> None:
    root = tmp_path / "elsewhere"
    run = world(checkpoint={"uri": str(root)})
    run.start()
    root.mkdir()
    (root / "epochs").write_text("a file where the folder should be")
    handing_in = threading.Thread(target=hand_in, args=(run.workers[0], "a", status))
    handing_in.start()
    if reported:
        handing_in.join()
        assert run.workers[0].next("end", 60.0)
        assert result(run.folder)["status"] == "failed"
        return
    log = run.folder / "controller.log"
    wait_for(lambda: "the state cannot be written, trying again" in log.read_text(), "it says so", seconds=60.0)
    assert not (run.folder / "result.json").exists()
    assert handing_in.is_alive(), "what no place has taken is not acknowledged"
    (root / "epochs").unlink()
    handing_in.join()
    assert "completed" in run.workers[0].next("end", 60.0).reason
