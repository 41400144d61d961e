"""Pauses: with too few workers left, the run stops at a checkpoint and goes on from it by itself (docs/protocols.md 10.2)."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from frostline_contract.plan import Plan
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.run.durable import DurableState, read_state
from frostline_controller.run.epochs import current_epoch
from frostline_proto.v1 import control_pb2 as pb
from tests.integration.recovery_world import QUICK, started
from tests.integration.scripted_worker import (
    Operator,
    ScriptedWorker,
    make_run,
    record,
    start_controller,
    stop,
    wait_for,
)
from tests.integration.scripted_world import World, events_of, world
from tests.integration.test_controller_restart import start_killed_controller

__all__ = ["world"]

TWO = {"workers": 2, "min_workers": 2}
GOES_ON = "too few workers stay: SIGTERM; goes on by itself from step 20 when min_workers (2) workers are there"


def leave(worker: ScriptedWorker) -> None:
    worker.stub.Leave(pb.LeaveRequest(worker_id=worker.worker_id, reason="SIGTERM"), timeout=60)


def save(folder: Path, worker: ScriptedWorker, step: int = 20) -> None:
    """Complete the members' checkpoint, and report it as their rank 0."""
    manifest = folder / "checkpoints" / "0" / "1.1" / str(step) / "manifest.json"
    manifest.parent.mkdir(parents=True, exist_ok=True)
    manifest.write_text(json.dumps({"lineage": 0, "step": step}))
    records = [record(one) for one in range(1, step + 1)]
    worker.records(*records, outcome=pb.RunOutcome(status="suspended", steps=step, digest="d" * 64))


def durable(folder: Path) -> DurableState:
    return read_state(LocalBackend(folder / "cluster").read())


def paused(run: World, who_leaves: int = 2) -> tuple[Plan, list[ScriptedWorker]]:
    """Pause a run of two workers at step 20. Return its plan and its members."""
    plan = started(run, 2)
    members = run.members(plan)
    for worker in members[:who_leaves]:
        leave(worker)
    for worker in members:
        assert worker.next("drain").reason == "too few workers stay: SIGTERM"
    save(run.folder, members[0])
    for worker in members:
        assert worker.next("end").reason == GOES_ON
    return plan, members


def goes_on(folder: Path, workers: list[ScriptedWorker]) -> Plan:
    """Let all workers enter the plan that starts from the checkpoint, and train. Return the plan."""
    (plan, *_) = [worker.next_plan("checkpoint") for worker in workers]
    assert (plan.start_step, plan.lineage, plan.checkpoint_path) == (20, 1, "0/1.1/20")
    assert set(plan.placement.workers) == {worker.worker_id for worker in workers}
    for worker in workers:
        worker.enter(plan, 20)
    wait_for(lambda: len(events_of(folder, "start")) == 2, "it goes on")
    state = durable(folder)
    assert (state.state, state.paused, state.message, state.retries.count) == ("running", False, "", 0)
    assert not events_of(folder, "end")
    assert not events_of(folder, "failure")
    reported = [message.WhichOneof("message") for worker in workers for message in worker.messages.queue]
    assert not {"drain", "end", "fence"} & set(reported)
    return plan


@pytest.mark.parametrize("who_leaves", [1, 2], ids=["one", "all at once"])
def test_it_goes_on_by_itself_when_enough_workers_are_there_again(world: Callable[..., World], who_leaves: int) -> None:
    run = world(placement=TWO, controller=QUICK)
    _, members = paused(run, who_leaves)
    status = run.operator.status()
    assert (status.state, status.message) == ("waiting", f"{GOES_ON}; waiting for workers: 0 of 2 are there")
    assert [event["reason"] for event in run.events("pause")] == [GOES_ON]
    assert not (run.folder / "result.json").exists()
    assert current_epoch(run.folder / "checkpoints").result is None, "a pause is no result"
    assert LocalBackend(run.folder / "cluster").read().spec_replicas == 2
    for worker in members:
        worker.silence()
    run.workers = []
    fresh = run.join(1)
    wait_for(lambda: "waiting for workers: 1 of 2" in run.operator.status().message, "one is not enough")
    plan = goes_on(run.folder, [*fresh, *run.join(1)])
    run.workers[0].step = 64
    run.members(plan)[0].records(outcome=pb.RunOutcome(status="completed", digest="d" * 64, steps=64))
    assert "completed" in run.workers[0].next("end").reason
    assert json.loads((run.folder / "result.json").read_text())["status"] == "completed"


def test_min_workers_are_enough_and_who_is_there_already_is_used(world: Callable[..., World]) -> None:
    """A replacement that came while the others were saving has run nothing: it receives neither a drain nor an end."""
    run = world(placement={"workers": 3, "min_workers": 2, "pp_degree": 1, "dp_degree": 2}, controller=QUICK)
    plan = run.start(3)
    run.at(20)
    members = run.members(plan)
    (spare,) = [worker for worker in run.workers if worker not in members]
    leave(spare)
    spare.next("end")
    spare.silence()
    for worker in members:
        leave(worker)
    members[1].next("drain")
    fresh = run.join(1)
    save(run.folder, members[0])
    assert "min_workers (2)" in members[1].next("end").reason
    for worker in members:
        worker.silence()
    goes_on(run.folder, [*fresh, *run.join(1)])


def test_a_drained_world_that_no_person_asked_to_stop_is_a_pause(world: Callable[..., World]) -> None:
    """A survivor that has received a pause's drain stops with the next generation too, though it had no reason to pause."""
    run = world(placement=TWO, controller=QUICK)
    plan = started(run, 2)
    save(run.folder, run.members(plan)[0])
    assert "goes on by itself from step 20" in run.workers[1].next("end").reason
    assert run.operator.status().state == "waiting"


@pytest.mark.parametrize(("kind", "state"), [("suspend", "suspended"), ("cancel", "cancelled")])
def test_a_run_that_waits_for_workers_after_a_failure_saves_and_stops_where_a_person_asks(
    world: Callable[..., World], kind: str, state: str
) -> None:
    """A node is gone for good: the survivors are fewer than `min_workers`, and enough to save what they keep."""
    run = world(placement=TWO, controller=QUICK)
    plan = started(run, 2)
    survivor, dead = run.members(plan)
    run.kill(dead)
    survivor.recover(plan, 20, range(6))
    wait_for(lambda: "1 of at least 2" in run.operator.status().message, "it waits")
    run.operator.command(kind)
    survivor.next("drain")
    alone = survivor.next_plan("survivors")
    assert (alone.placement.workers, alone.start_step) == ((survivor.worker_id,), 20)
    survivor.enter(alone, 20)
    assert survivor.next("drain").reason == f"{kind} by command"
    save(run.folder, survivor)
    survivor.next("end")
    assert run.operator.status().state == state


@pytest.mark.parametrize("when", ["while they save", "while it waits"])
def test_a_controller_that_is_killed_has_a_successor_that_goes_on(world: Callable[..., World], when: str) -> None:
    run = world(placement=TWO, controller=QUICK)
    if when == "while it waits":
        paused(run)
    else:
        plan = started(run, 2)
        for worker in run.workers:
            leave(worker)
        for worker in run.workers:
            worker.next("drain")
    run.restart_controller()
    if when == "while they save":
        for worker in run.workers:
            worker.connect_again()
            assert worker.next("drain").reason == "too few workers stay: SIGTERM"
        save(run.folder, run.members(plan)[0])
        for worker in run.workers:
            assert worker.next("end").reason == GOES_ON
    for worker in run.workers:
        worker.silence()
    assert run.operator.status().message.startswith(GOES_ON)
    assert run.operator.status().state == "waiting"
    run.workers = []
    goes_on(run.folder, run.join(2))
    assert len(run.events("pause")) == 1


def test_killed_after_the_pause_is_durable_its_successor_ends_the_members_and_goes_on(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", placement=TWO, controller=QUICK)
    first = start_killed_controller(folder, "paused")
    members = [ScriptedWorker(folder, ordinal).join() for ordinal in range(2)]
    plan = members[0].next_plan("fresh")
    members.sort(key=lambda worker: plan.placement.global_ranks[worker.worker_id])
    for worker in members:
        worker.enter(plan, 0)
        worker.heartbeat(20)
        leave(worker)
    members[0].next("drain")
    with pytest.raises(Exception, match="UNAVAILABLE"):
        save(folder, members[0])
    assert first.wait(60) == -9
    second = start_controller(folder)
    operator = Operator(folder)
    fresh: list[ScriptedWorker] = []
    try:
        for worker in members:
            worker.connect_again()
            assert worker.next("end").reason == GOES_ON
        save(folder, members[0])  # rank 0's report had no answer; it is sent again
        assert operator.status().state == "waiting"
        fresh = [ScriptedWorker(folder, ordinal, uid=f"next-{ordinal}").join() for ordinal in range(2)]
        goes_on(folder, fresh)
        assert len(events_of(folder, "pause")) == 1
    finally:
        for worker in (*members, *fresh):
            worker.close()
        operator.close()
        stop(second)


@pytest.mark.parametrize("how", ["command", "scale"])
@pytest.mark.parametrize("when", ["while they save", "while it waits"])
def test_a_drain_that_a_person_asked_for_ends_the_run(world: Callable[..., World], when: str, how: str) -> None:
    run = world(placement=TWO, controller=QUICK)
    if when == "while it waits":
        paused(run)
    else:
        plan = started(run, 2)
        for worker in run.workers:
            leave(worker)
        run.workers[0].next("drain")
    if how == "command":
        run.operator.command("suspend")
    else:
        LocalBackend(run.folder / "cluster").scale(0)
        wait_for(lambda: durable(run.folder).requested_workers == 0, "the request is taken")
    if when == "while they save":
        wait_for(lambda: "suspend by" in durable(run.folder).message, "the drain is a person's now")
        save(run.folder, run.members(plan)[0])
    wait_for(lambda: run.operator.status().state == "suspended", "suspended")
    result = json.loads((run.folder / "result.json").read_text())
    assert (result["status"], result["steps"]) == ("suspended", 20)
    assert not durable(run.folder).paused
    assert len(run.events("end")) == 1
    for worker in run.workers:
        worker.silence()
    wait_for(lambda: LocalBackend(run.folder / "cluster").read().spec_replicas == 0, "scaled to nothing")
