"""A worker reports wrong bits: the run goes back to a state before them; results computed since then no longer count."""

import contextlib
import json
from collections.abc import Callable

import grpc

from frostline_contract.plan import Plan
from frostline_controller.run.checkpoints import newest_checkpoint
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import to_message
from tests.integration.recovery_world import QUICK, UNITS, answer_to, failures, plan_lines, started
from tests.integration.scripted_worker import ScriptedWorker, at, record, wait_for, wire
from tests.integration.scripted_world import World, events_of, world
from tests.integration.test_controller_restart import Pair, pair

__all__ = ["pair", "world"]

TEXT = "CacheDiffers: cached activations of the train split at boundary 2 differ"


def distrust(
    worker: ScriptedWorker, plan: Plan, step: int, first: int, cache: bool = False, workers: tuple[str, ...] = (), **detail: str
) -> None:
    """Report a failure at `step` of `plan`: results from `first` on are wrong. detail: in place of an audit's."""
    state = to_message(at(plan, step), plan_pb2.StateTag)
    worker.stub.ReportRecovery(
        pb.ReportRecoveryRequest(
            worker_id=worker.worker_id, incarnation=1, generation=wire(plan), ran=wire(plan), error=TEXT,
            pieces=[pb.PieceReport(piece=unit, intact=True, state=state) for unit in UNITS],
            distrusted_from=first, cache_distrusted=cache, distrusted_workers=workers,
            distrusted_detail=detail or {"audited_step": "20", "micro_batch": "3"},
        ),
        timeout=60,
    )  # fmt: skip


def third_distrusted(world: Callable[..., World], place: str, times: int) -> tuple[World, list[ScriptedWorker], Plan]:
    """Report the third of three members, while writes at a place fail. Return the run, the members and the answer."""
    run = world(script="faulty_controller.py", placement={"workers": 3}, controller=QUICK)
    plan = started(run, 3)
    members = run.members(plan)
    run.plant(place, times=times)
    for worker in members:
        distrust(worker, plan, 20, 1, workers=(members[2].worker_id,))
    return run, members, answer_to(plan, members[0])


def gone_back(run: World, **said: object) -> tuple[Plan, Plan]:
    """Report results from step 12 on as wrong, at step 20, with checkpoints of steps 8 and 16. Return both plans."""
    plan = started(run, 2)
    first, second = run.members(plan)
    first.records(*[record(step, loss=2.0, numerics_hash=f"h{step}") for step in range(1, 21)])
    for step in (8, 16):
        run.checkpoint(step)
    distrust(first, plan, 20, 12, **said)  # type: ignore[arg-type]
    second.recover(plan, 20, UNITS, fenced=True, error="")
    return plan, answer_to(plan, second)


def test_it_goes_back_to_before_the_first_wrong_step_and_redone_steps_are_not_compared(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    _, back = gone_back(run, cache=True)
    assert (back.start, back.start_step, back.lineage, back.run_epoch) == ("checkpoint", 8, 1, 1)
    assert "what was computed from step 12 on is not to be trusted; the cache is off" in back.reason
    found = newest_checkpoint(run.folder / "checkpoints")
    assert found is not None and found.step == 8, "the newer one is of an epoch that is over"
    for worker in run.workers:
        worker.enter(back, 8)
    wait_for(lambda: "the cache is off, a cached value was wrong: " in run.operator.status().message, "the status says so")
    run.workers[0].records(record(9, lineage=1, generation="1.2", loss=3.0, numerics_hash="h9"))
    (reported,) = events_of(run.folder, "wrong_bits")
    assert TEXT in reported["reason"]
    assert reported["step"] == 8
    run.restart_controller()
    for worker in run.workers:
        worker.connect_again()
    run.workers[0].records(record(10, lineage=1, generation="1.2", loss=3.0, numerics_hash="h10"))
    lines = run.lines("metrics.jsonl")
    assert {"lineage": 1, "starts_at_step": 8, "distrusts": True} in lines
    assert [line["loss"] for line in lines if line.get("step") in (9, 10)] == [2.0, 2.0, 3.0, 3.0]
    assert not (run.folder / "result.json").exists()


def test_what_survivors_still_hold_of_it_is_not_gone_on_with(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    plan, back = gone_back(run)
    for worker in run.workers:  # no worker has entered the plan yet
        worker.recover(plan, 20, UNITS, newest_received=back)
    again = answer_to(back, run.workers[0])
    assert (again.start, again.start_step) == ("checkpoint", 8)


def state_of(run: World, worker: ScriptedWorker) -> str:
    return {one.worker_id: one.state for one in run.operator.status().workers}[worker.worker_id]


def test_whose_bits_differ_from_all_others_is_excluded(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 3}, controller=QUICK)
    plan = started(run, 3)
    first, second, odd = run.members(plan)
    for worker in (first, second, odd):
        distrust(worker, plan, 20, 1, workers=(odd.worker_id,))
    answer = answer_to(plan, first)
    assert answer.start == "fresh"
    assert odd.worker_id not in answer.participants
    wait_for(lambda: state_of(run, odd) == "gone", "the odd one's pod is given up")
    (reported,) = events_of(run.folder, "wrong_bits")
    detail = reported["detail"]
    assert detail["workers"] == [odd.worker_id]
    (place,) = (worker for worker in run.operator.status().workers if worker.worker_id == odd.worker_id)
    assert detail["pods"] == [place.pod_name]
    assert (len(detail["nodes"]), len(detail["devices"])) == (1, 1)
    assert (detail["audited_step"], detail["micro_batch"]) == ("20", "3")
    named = f"{place.pod_name} is on node {detail['nodes'][0]}, device {detail['devices'][0]}"
    assert reported["reason"].startswith(named), "where the cluster, which cuts off long messages, keeps it"
    assert f"wrong bits: {named}" in run.operator.status().message
    assert json.loads((run.folder / "checkpoints" / "epochs" / "1.json").read_text())["run_epoch"] == 1


def test_distrust_that_comes_after_the_others_went_on_is_not_lost(world: Callable[..., World]) -> None:
    """The recovery was planned without the reporting worker, yet the others' state is wrong: the run goes back, once."""
    run = world(placement={"workers": 2}, controller=QUICK)
    plan = started(run, 2)
    first, second = run.members(plan)
    first.records(*[record(step, loss=2.0, numerics_hash=f"h{step}") for step in range(1, 21)])
    for step in (8, 16):
        run.checkpoint(step)
    first.silence()
    second.recover(plan, 20, UNITS)
    onwards = answer_to(plan, second)
    assert (onwards.start, onwards.start_step) == ("survivors", 20)
    distrust(first, plan, 20, 12)
    second.recover(onwards, 20, UNITS, fenced=True, error="")
    back = answer_to(onwards, second)
    assert (back.start, back.start_step) == ("checkpoint", 8)
    second.enter(back, 8)
    distrust(first, plan, 20, 12)
    second.records(record(9, lineage=back.lineage, generation=str(back.generation), loss=2.0, numerics_hash="h9"))
    assert len(failures(run, 2)) == 2 and plan_lines(run)[-1]["generation"]["counter"] == back.generation.counter


def test_who_may_be_wrong_makes_place_where_the_answer_needs_a_replacement(world: Callable[..., World]) -> None:
    """Only two workers exist and contradict each other: both pods are deleted before there is a plan for the replacements."""
    run = world(placement={"workers": 2, "min_workers": 2}, controller=QUICK)
    plan = started(run, 2)
    both = run.members(plan)
    for worker in both:
        distrust(worker, plan, 20, 1, workers=tuple(one.worker_id for one in both))
    wait_for(lambda: {state_of(run, one) for one in both} == {"gone"}, "both pods are given up")
    waiting = "waiting for workers after a failure: 0 of at least 2"
    wait_for(lambda: run.operator.status().message.startswith(waiting), "the status says so")
    assert not events_of(run.folder, "wrong_bits"), "nothing has been answered"
    replacements = run.join(2)
    answer = answer_to(plan, replacements[0])
    assert answer.start == "fresh"
    assert set(answer.placement.workers) == {worker.worker_id for worker in replacements}
    (reported,) = wait_for(lambda: events_of(run.folder, "wrong_bits"), "it is told")
    assert sorted(reported["detail"]["workers"]) == sorted(one.worker_id for one in both)


def test_of_two_copies_that_differ_both_holders_are_told_and_neither_is_excluded(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    plan = started(run, 2)
    first, second = run.members(plan)
    for worker in (first, second):
        distrust(worker, plan, 20, 1, holders=f"{first.worker_id} {second.worker_id}")
    answer = answer_to(plan, first)
    assert set(answer.placement.workers) == {first.worker_id, second.worker_id}
    (reported,) = wait_for(lambda: events_of(run.folder, "wrong_bits"), "it is told")
    assert reported["detail"]["workers"] == []
    assert reported["detail"]["holders"] == [
        {"worker": one.worker_id, "pod": f"trainer-{one.ordinal}", "node": one.node, "device": "cpu"} for one in (first, second)
    ]
    places = [f"trainer-{one.ordinal} is on node {one.node}, device cpu" for one in (first, second)]
    assert reported["reason"].startswith(f"one of: {'; '.join(places)}")
    assert f"wrong bits: one of: {places[0]}" in run.operator.status().message


def test_who_computed_wrong_is_told_once_though_the_plan_could_not_be_written(world: Callable[..., World]) -> None:
    run, (first, second, odd), answer = third_distrusted(world, "plans.jsonl", times=2)
    run.met("plans.jsonl")
    (reported,) = wait_for(lambda: events_of(run.folder, "wrong_bits"), "it is told")
    assert reported["detail"]["workers"] == [odd.worker_id]
    assert (reported["detail"]["nodes"], reported["detail"]["audited_step"]) == ([odd.node], "20")
    for worker in (first, second):
        worker.enter(answer, 0)
    failures(run)
    assert len(events_of(run.folder, "wrong_bits")) == 1


def test_events_of_two_answers_that_found_no_room_are_both_written_by_a_successor(world: Callable[..., World]) -> None:
    """The disk takes no event from the first answer to the controller's death: the durable state holds both meanwhile."""
    run, (first, second, third), back = third_distrusted(world, "events.jsonl", times=1_000_000)
    for worker in (first, second):
        worker.enter(back, 0)
        worker.heartbeat(5)
    for worker in (first, second):
        distrust(worker, back, 5, 1, workers=(second.worker_id,), audited_step="5")
    again = answer_to(back, first)
    run.controller.kill()
    run.controller.wait(60)
    assert events_of(run.folder, "wrong_bits") == []
    run.plant("events.jsonl", times=0)
    run.restart_controller()
    lines = wait_for(lambda: len(found := events_of(run.folder, "wrong_bits")) == 2 and found, "both are written")
    assert [line["detail"]["workers"] for line in lines] == [[third.worker_id], [second.worker_id]]
    assert [line["generation"] for line in lines] == [str(back.generation), str(again.generation)]


def test_who_computed_wrong_is_told_once_though_the_controller_died_behind_its_plan(pair: Callable[..., Pair]) -> None:
    run = pair(dies_after="distrusted", step=20)
    first, odd = run.workers
    with contextlib.suppress(grpc.RpcError):  # the controller may die before it has replied
        distrust(first, run.plan, 20, 1, workers=(odd.worker_id,))
    assert run.controller.wait(60) == -9
    assert events_of(run.folder, "wrong_bits") == []
    run.replace_controller()
    first.register()
    first.watch()
    answer = answer_to(run.plan, first)
    (reported,) = wait_for(lambda: events_of(run.folder, "wrong_bits"), "the successor tells it")
    assert (reported["lineage"], reported["step"], reported["generation"]) == (answer.lineage, 0, str(answer.generation))
    assert reported["detail"]["workers"] == [odd.worker_id]
    assert reported["reason"].startswith(f"trainer-1 is on node {odd.node}, device cpu"), "though it never met the worker"
    run.kill_controller()
    run.replace_controller()
    first.register()
    first.watch()
    answer_to(run.plan, first)
    assert len(events_of(run.folder, "wrong_bits")) == 1
