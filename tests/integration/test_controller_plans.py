"""The controller over real sockets: first plan, decisions, the two-phase reshape, withdrawal, recovery, end."""

import json
from collections.abc import Callable

import grpc
import pytest

from frostline_contract.plan import Decision
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.convert import to_record
from tests.integration.recovery_world import SOON_GONE, started
from tests.integration.scripted_worker import record, start_controller, statistics, stop, wait_for, wire
from tests.integration.scripted_world import World, world

__all__ = ["world"]

FREEZE_AT_2 = {"policy": {"name": "manual", "points": {2: 2}}, "interval_steps": 8, "rails": {"off": ["guard"]}}


def test_first_plan_names_all_workers_and_status_shows_them(world: Callable[..., World]) -> None:
    run = world()
    plan = run.start()
    assert (plan.start, plan.start_step, plan.lineage, str(plan.generation)) == ("fresh", 0, 0, "1.1")
    assert set(plan.placement.workers) == {worker.worker_id for worker in run.workers}
    assert plan.store_port == 10000 + next(w.ordinal for w in run.workers if w.worker_id == plan.placement.workers[0])
    status = wait_for(lambda: (s := run.operator.status()).state == "running" and s, "running")
    assert (status.total_steps, status.num_units, status.incarnation) == (64, 6, 1)
    assert [worker.state for worker in status.workers] == ["member", "member"]
    assert 0 < status.resident_bytes <= 120e6
    assert wait_for(lambda: [line["kind"] for line in run.lines("events.jsonl")] == ["start"], "the start event")


def test_first_plan_takes_those_there_are_after_the_timeout(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 3}, controller={"start_timeout_seconds": 0.5})
    plan = run.start(1)
    assert plan.placement.workers == (run.workers[0].worker_id,)


def test_decision_reaches_everyone_and_its_freeze_is_reshaped_for(world: Callable[..., World]) -> None:
    run = world(freeze=FREEZE_AT_2, placement={"reshape_every_freeze": True})
    first = run.start()
    run.at(9)
    assert run.workers[0].report(statistics(1)) == 1
    kept = [to_record(worker.next("decision"), Decision) for worker in run.workers]
    assert [(d.number, d.kind, d.effective_step, d.freeze_point) for d in kept] == [(1, "keep", 11, 0)] * 2
    run.at(17)
    assert run.workers[0].report(statistics(2)) == 2
    froze = [to_record(worker.next("decision"), Decision) for worker in run.workers]
    assert [(d.number, d.kind, d.effective_step, d.freeze_point) for d in froze] == [(2, "freeze", 19, 2)] * 2
    plans = [worker.next_plan("continue") for worker in run.workers]
    plan = plans[0]
    assert (plan.base, plan.decision_number, plan.freeze_point) == (first.generation, 2, 2)
    assert (plan.switch_from, plan.switch_until) == (19, 25)
    assert [decision.number for decision in plan.decisions] == [1, 2]
    assert set(plan.sources) <= set(first.placement.workers)
    assert len(plan.sources) == 6
    run.workers[0].ready(plan)
    run.workers[1].ready(plan)
    for worker in run.workers:
        assert worker.next("ready").generation.counter == plan.generation.counter
    for worker in run.workers:
        worker.enter(plan, 20)
    wait_for(lambda: run.operator.status().generation.counter == plan.generation.counter, "the switch is known")
    run.at(21)
    lines = wait_for(lambda: [x for x in run.lines("plans.jsonl") if x["kind"] != "decision"][1:], "plans.jsonl")
    assert lines[0] == {"kind": "plan_end", "generation": "1.1", "last_step": 20}
    assert (lines[1]["first_step"], lines[1]["last_step"]) == (21, None)
    kinds = wait_for(lambda: (k := [x["kind"] for x in run.lines("events.jsonl")]) and len(k) >= 3 and k, "events")
    assert sorted(kinds) == ["freeze", "reshape", "start"]


def test_plan_that_is_not_ready_in_time_is_withdrawn(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller={"reshape_deadline_seconds": 3.0})
    run.start()
    run.at(3)
    assert "reshape to pp 2 x dp 1" in run.operator.command("reshape", pp_degree=2, dp_degree=1)
    plan = run.workers[0].next_plan("continue")
    assert (plan.placement.pp_degree, plan.placement.dp_degree) == (2, 1)
    run.workers[0].ready(plan)
    withdrawn = run.workers[0].next("withdraw")
    assert withdrawn.generation.counter == plan.generation.counter
    assert run.workers[1].worker_id in withdrawn.reason
    assert run.operator.status().generation.counter == 1
    with pytest.raises(grpc.RpcError) as refused:
        wait_for(lambda: run.workers[0].ready(plan), "refusal")
    assert refused.value.code() == grpc.StatusCode.ABORTED


def test_scheduled_reshape_switches_from_its_step(world: Callable[..., World]) -> None:
    run = world(reshapes=[{"step": 6, "pp_degree": 2, "dp_degree": 1}])
    run.start()
    run.at(1)
    plan = run.workers[1].next_plan("continue")
    assert (plan.switch_from, plan.switch_until, plan.decision_number) == (6, 9, 0)
    assert plan.placement.stage_bounds[0] == 0
    assert len(plan.placement.stage_bounds) == 3


def test_joiner_is_planned_in_and_a_leaver_is_released(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2})
    run.start(2)
    run.at(3)
    leaver = next(worker for worker in run.workers if worker.worker_id == run.workers[1].worker_id)
    leaver.stub.Leave(pb.LeaveRequest(worker_id=leaver.worker_id, reason="SIGTERM"), timeout=60)
    plan = run.workers[0].next_plan("continue")
    assert plan.placement.workers == (run.workers[0].worker_id,)
    run.workers[0].ready(plan)
    if leaver.worker_id in plan.leavers:
        leaver.ready(plan)
    run.workers[0].next("ready")
    run.workers[0].enter(plan, 5)
    assert leaver.next("end").reason
    joiner = run.join(1)[0]
    again = run.workers[0].next_plan("continue")
    assert set(again.placement.workers) == {run.workers[0].worker_id, joiner.worker_id}
    assert again.base == plan.generation


def test_killed_member_is_answered_by_a_plan_from_the_checkpoint(world: Callable[..., World]) -> None:
    run = world(controller=SOON_GONE)
    plan = started(run, 2)
    manifest = run.folder / "checkpoints" / "0" / "1.1" / "12" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"lineage": 0, "step": 12}))
    (manifest.parent.parent / "16").mkdir()  # unfinished: no manifest
    survivor, dead = run.workers
    dead.silence()
    survivor.recover(plan, 20)
    answer = survivor.next_plan("checkpoint")
    assert (answer.lineage, answer.start_step, answer.checkpoint_path) == (1, 12, "0/1.1/12")
    assert answer.placement.workers == (survivor.worker_id,)
    survivor.enter(answer, 12)
    events = wait_for(lambda: run.events("failure"), "the failure event")
    assert "worker trainer-1 does not answer: no heartbeat" in events[0]["reason"]
    assert "back to step 12: units [0, 1, 2, 3, 4, 5] are held by nobody" in events[0]["reason"]
    survivor.records(record(13, lineage=1))
    assert run.lines("metrics.jsonl")[0] == {"lineage": 1, "starts_at_step": 12}


def test_outcome_is_stored_and_everyone_is_told_to_exit(world: Callable[..., World]) -> None:
    run = world()
    run.start()
    wait_for(lambda: run.lines("events.jsonl"), "the start event")
    run.at(64)
    outcome = pb.RunOutcome(status="completed", digest="d" * 64, final={"loss": 0.5, "accuracy": 0.9}, steps=64)
    run.workers[0].records(record(1), outcome=outcome)
    for worker in run.workers:
        assert "completed" in worker.next("end").reason
    result = json.loads((run.folder / "result.json").read_text())
    assert (result["status"], result["steps"], result["digest"]) == ("completed", 64, "d" * 64)
    assert result["final"] == {"loss": 0.5, "accuracy": 0.9}
    assert [event["kind"] for event in result["events"]] == ["start", "end"]
    for worker in run.workers:
        worker.silence()
    cluster = run.folder / "cluster" / "statefulset.json"
    wait_for(lambda: json.loads(cluster.read_text())["spec"]["replicas"] == 0, "scaled to nothing")
    assert run.operator.status().state == "completed"


@pytest.mark.parametrize("reported", ["entered", "by its records alone"])
def test_a_switch_while_the_run_drains_is_in_the_history(world: Callable[..., World], reported: str) -> None:
    run = world()
    run.start()
    run.at(10)
    run.operator.command("reshape", pp_degree=2, dp_degree=1)
    (plan, _) = [worker.next_plan("continue") for worker in run.workers]
    for worker in run.workers:
        worker.ready(plan)
    for worker in run.workers:
        worker.next("ready")
    run.operator.command("suspend")
    for worker in run.members(plan):
        worker.next("drain")
    for worker in run.members(plan):
        if reported == "entered":
            worker.enter(plan, 12)
        else:
            worker.generation, worker.step = wire(plan), 12
    steps = [record(step) for step in range(1, 13)] + [record(13, generation=str(plan.generation))]
    run.members(plan)[0].records(*steps, outcome=pb.RunOutcome(status="suspended", steps=13))
    run.workers[0].next("end")
    assert [line for line in run.lines("plans.jsonl") if line["kind"] == "plan_end"] == [
        {"kind": "plan_end", "generation": "1.1", "last_step": 12},
        {"kind": "plan_end", "generation": str(plan.generation), "last_step": 13},
    ]
    assert [line["first_step"] for line in run.lines("plans.jsonl") if line["kind"] == "plan"] == [1, 13]
    assert run.lines("events.jsonl")[-1]["generation"] == str(plan.generation)


def test_suspend_drains_and_resume_starts_from_the_checkpoint(world: Callable[..., World]) -> None:
    run = world()
    run.start()
    run.at(10)
    assert run.operator.command("suspend") == "draining to a checkpoint"
    for worker in run.workers:
        assert "suspend" in worker.next("drain").reason
    manifest = run.folder / "checkpoints" / "0" / "1.1" / "10" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"lineage": 0, "step": 10}))
    run.workers[0].records(outcome=pb.RunOutcome(status="suspended", steps=10))
    wait_for(lambda: run.operator.status().state == "suspended", "suspended")
    assert json.loads((run.folder / "result.json").read_text())["status"] == "suspended"
    for worker in run.workers:
        worker.stub.Leave(pb.LeaveRequest(worker_id=worker.worker_id, reason="end", ended=True), timeout=60)
        worker.close()
    stop(run.controller)
    run.controller = start_controller(run.folder, "--resume")
    run.workers = []
    again = run.join(2)
    plan = again[0].next_plan()
    while plan.generation.incarnation == 1:
        plan = again[0].next_plan()
    assert (plan.start, plan.start_step, plan.lineage, plan.generation.incarnation) == ("checkpoint", 10, 1, 2)
