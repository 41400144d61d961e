"""Failures over real sockets: fences, reports, the plan that answers, and what can go wrong meanwhile (PROTOCOLS 4)."""

import json
import time
from collections.abc import Callable

import grpc
import pytest

from frostline_contract.plan import Plan
from frostline_proto.v1 import control_pb2 as pb
from tests.integration.scripted_worker import ScriptedWorker, at, record, vote_of, wait_for
from tests.integration.scripted_world import World, world

__all__ = ["world"]

QUICK = {"heartbeat_seconds": 0.2, "dead_after_seconds": 3.0, "start_timeout_seconds": 5.0}
UNITS = range(6)


def started(run: World, count: int, pp_degree: int | None = None) -> Plan:
    """All have entered the first plan and are at step 20."""
    plan = run.start(count)
    run.at(20)
    assert pp_degree in (None, plan.placement.pp_degree)
    return plan


def failures(run: World, count: int = 1) -> list[dict]:
    return wait_for(
        lambda: (e := [e for e in run.lines("events.jsonl") if e["kind"] == "failure"])[count - 1 :] and e, "the failure event"
    )


def plan_lines(run: World) -> list[dict]:
    return [line for line in run.lines("plans.jsonl") if line["kind"] == "plan"]


def answer_to(plan: Plan, worker: ScriptedWorker) -> Plan:
    """The next plan after `plan` that reaches a worker."""
    answer = worker.next_plan()
    while not plan.generation < answer.generation:
        answer = worker.next_plan()
    return answer


def pipeline(world: Callable[..., World], workers: int = 2, **sections) -> tuple[World, Plan]:
    """One replica: each member is the only owner of its units, and keeps its neighbour's."""
    placement = {"workers": workers, "initial_pp_degree": workers, **sections.pop("placement", {})}
    run = world(placement=placement, controller={**QUICK, **sections.pop("controller", {})}, **sections)
    return run, started(run, workers, workers)


def test_a_killed_member_costs_no_step_where_its_units_have_a_buddy(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    plan = started(run, 2)
    survivor, dead = run.members(plan)
    killed = time.monotonic()
    run.kill(dead)
    fence = survivor.next("fence")
    assert fence.generation.counter == 1
    assert "trainer" in fence.reason
    survivor.recover(plan, 20, UNITS, fenced=True, error="")
    answer = survivor.next_plan("survivors")
    assert time.monotonic() - killed < 1.0
    assert (answer.lineage, answer.start_tag, answer.vote) == (0, at(plan, 20), None)
    assert (answer.base, answer.placement.workers) == (plan.generation, (survivor.worker_id,))
    assert [answer.holders_of(unit) for unit in UNITS] == [[survivor.worker_id]] * 6
    assert set(answer.sources) == {answer.state_source} == {survivor.worker_id}
    survivor.enter(answer, 20)
    told = failures(run)[0]
    assert "all units at step 20 from survivors" in told["reason"]
    assert "is gone: exit -9" in told["reason"]
    assert (told["lost_steps"], told["step"]) == (0, 20)
    assert 0 < told["seconds"] < 5
    line = plan_lines(run)[-1]
    assert (line["first_step"], line["start"]) == (21, "survivors")
    facts = line["answers"]
    assert (facts["reported"], facts["ended"]) == ([survivor.worker_id], [dead.worker_id])
    assert (facts["silent"], facts["missing"]) == ([], [])
    assert {"kind": "plan_end", "generation": "1.1", "last_step": 20} in run.lines("plans.jsonl")


def test_a_report_is_a_sign_by_itself_and_everybody_else_is_fenced(world: Callable[..., World]) -> None:
    run, plan = pipeline(world, 3)
    first, second, third = run.members(plan)
    first.recover(plan, 20, UNITS, error="RuntimeError: planned fault")
    for other in (second, third):
        assert other.next("fence").generation.counter == 1
        other.recover(plan, 20, UNITS, fenced=True, error="")
    answers = [worker.next_plan("survivors") for worker in (first, second, third)]
    assert set(answers[0].placement.workers) == set(plan.placement.workers)
    assert "RuntimeError: planned fault" in answers[0].reason


def test_the_vote_that_one_has_seen_is_in_the_plan_for_all(world: Callable[..., World]) -> None:
    run, plan = pipeline(world, 3)
    behind, ahead, dead = run.members(plan)
    run.kill(dead)
    behind.recover(plan, 20, UNITS, prepared=True)
    ahead.recover(plan, 21, UNITS, seen=[vote_of(plan, 20), vote_of(plan, 21)])
    answer = behind.next_plan("survivors")
    assert (answer.start_tag, answer.vote, answer.state_source) == (at(plan, 21), vote_of(plan, 21), ahead.worker_id)
    assert set(answer.holders_of(0)) == {behind.worker_id, ahead.worker_id}
    assert (answer.lineage, run.operator.status().lineage) == (0, 0)


def test_what_nobody_holds_at_one_step_goes_back_and_says_so(world: Callable[..., World]) -> None:
    run, plan = pipeline(world)
    run.checkpoint(12)
    survivor, dead = run.members(plan)
    own = plan.placement.units_of(survivor.worker_id)
    run.kill(dead)
    survivor.recover(plan, 20, own)
    time.sleep(0.3)
    joiner = run.join(1)[0]
    answer = joiner.next_plan("checkpoint")
    assert (answer.start_step, answer.lineage, answer.checkpoint_path) == (12, 1, "0/1.1/12")
    for worker in (survivor, joiner):
        worker.enter(answer, 12)
    lacking = [unit for unit in UNITS if unit not in own]
    told = failures(run)[0]
    assert f"back to step 12: units {lacking} are held by nobody" in told["reason"]
    assert (told["lost_steps"], told["lineage"]) == (8, 1)
    assert plan_lines(run)[-1]["answers"]["missing"] == lacking


def test_a_vote_that_no_survivor_knows_of_is_computed_again_in_the_same_lineage(world: Callable[..., World]) -> None:
    run, plan = pipeline(world, 3)
    first, second, dead = run.members(plan)
    dead.heartbeat(21)
    run.kill(dead)
    first.recover(plan, 20, UNITS, prepared=True)
    second.recover(plan, 20, UNITS, prepared=True)
    answer = first.next_plan("survivors")
    assert (answer.start_tag, answer.lineage, answer.vote) == (at(plan, 20), 0, None)
    for worker in (first, second):
        worker.enter(answer, 20)
    assert failures(run)[0]["lost_steps"] == 1, "a step that was committed somewhere is told of"


def test_a_torn_world_that_falls_back_begins_a_lineage(world: Callable[..., World]) -> None:
    run, plan = pipeline(world, 3)
    behind, ahead, dead = run.members(plan)
    run.kill(dead)
    behind.recover(plan, 20, UNITS, seen=[vote_of(plan, 21)])  # saw the vote of 21, and has lost its gradients
    ahead.recover(plan, 21, range(2), seen=[vote_of(plan, 21)])
    answer = behind.next_plan("survivors")
    assert (answer.start_tag, answer.lineage) == (at(plan, 20), 1)
    assert "where lineage 1 begins" in answer.reason
    for worker in (behind, ahead):
        worker.enter(answer, 20)
    behind.records(record(21, lineage=1, generation=str(answer.generation)))
    assert {"lineage": 1, "starts_at_step": 20} in run.lines("metrics.jsonl")


def test_waits_below_min_workers_and_a_joiner_completes_the_survivors(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2, "min_workers": 2}, controller=QUICK)
    plan = started(run, 2)
    survivor, dead = run.members(plan)
    run.kill(dead)
    survivor.recover(plan, 20, UNITS)
    status = wait_for(lambda: (s := run.operator.status()).message.startswith("waiting") and s, "it says that it waits")
    assert "1 of at least 2" in status.message
    assert "all units are kept at step 20" in status.message
    time.sleep(0.5)
    joiner = run.join(1)[0]
    answer = joiner.next_plan("survivors")
    assert set(answer.placement.workers) == {survivor.worker_id, joiner.worker_id}
    assert answer.start_tag == at(plan, 20)
    assert answer.store_port == 10000 + next(w.ordinal for w in run.workers if w.worker_id == answer.placement.workers[0])
    for worker in (survivor, joiner):
        worker.enter(answer, 20)
    wait_for(lambda: run.operator.status().message == "", "it waits no more")


def test_a_recovery_that_fails_itself_goes_on_with_the_vote_of_its_plan(world: Callable[..., World]) -> None:
    run, plan = pipeline(world, 3)
    behind, ahead, dead = run.members(plan)
    run.kill(dead)
    behind.recover(plan, 20, UNITS, prepared=True)
    ahead.recover(plan, 21, UNITS, seen=[vote_of(plan, 21)])
    interrupted = behind.next_plan("survivors")
    run.kill(ahead)
    assert behind.next("fence").generation.counter == interrupted.generation.counter
    behind.recover(plan, 20, UNITS, heard=interrupted, prepared=True, fenced=True)
    answer = behind.next_plan("survivors")
    assert (answer.base, answer.start_tag, answer.vote) == (interrupted.generation, at(plan, 21), vote_of(plan, 21))
    behind.enter(answer, 21)
    told = failures(run, 2)
    assert "(interrupted)" in told[0]["reason"]
    assert "all units at step 21" in told[1]["reason"]


def test_a_promise_for_an_older_plan_is_asked_for_again(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    first = started(run, 2)
    run.operator.command("reshape", pp_degree=2, dp_degree=1)
    following = run.workers[0].next_plan("continue")
    members = run.members(first)
    members[0].recover(first, 20, UNITS)  # has not heard of the plan
    fence = members[0].next("fence")
    assert fence.generation.counter == following.generation.counter
    members[1].recover(first, 20, UNITS, heard=following)
    time.sleep(0.3)
    assert run.operator.status().generation.counter == first.generation.counter, "half a promise starts nothing"
    members[0].recover(first, 20, UNITS, heard=following)
    assert members[0].next_plan("survivors").generation.counter > following.generation.counter


def test_some_have_switched_and_some_have_not(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    first = started(run, 2)
    run.operator.command("reshape", pp_degree=2, dp_degree=1)
    following = run.workers[0].next_plan("continue")
    assert [following.holders_of(unit) for unit in (0, 5)] == [list(following.placement.workers)] * 2
    behind, ahead = run.members(first)
    ahead.recover(following, 21, UNITS, tag=at(first, 21), seen=[vote_of(first, 21)], switched=following, heard=following)
    behind.next("fence")
    behind.recover(first, 20, UNITS, prepared=True, heard=following, fenced=True)
    answer = behind.next_plan("survivors")
    assert (answer.start_tag, answer.vote) == (at(first, 21), vote_of(first, 21))
    lines = wait_for(lambda: (found := plan_lines(run))[2:] and found, "the plan that ran unseen is in the history")
    assert [(line["start"], line["first_step"]) for line in lines] == [("fresh", 1), ("continue", 22), ("survivors", 22)]


def test_the_only_holder_takes_part_though_it_leaves(world: Callable[..., World]) -> None:
    run, plan = pipeline(world, 3)
    leaving, staying, dead = run.members(plan)
    leaving.stub.Leave(pb.LeaveRequest(worker_id=leaving.worker_id, reason="SIGTERM"), timeout=5)
    following = staying.next_plan("continue")
    assert leaving.worker_id in following.leavers
    run.kill(dead)
    leaving.recover(plan, 20, UNITS, heard=following)
    staying.recover(plan, 20, range(1, 6), heard=following)
    answer = staying.next_plan("survivors")
    assert (answer.placement.workers, answer.leavers) == ((staying.worker_id,), (leaving.worker_id,))
    assert (answer.holders_of(0), answer.sources[0]) == ([leaving.worker_id], leaving.worker_id)
    staying.enter(answer, 20)
    assert leaving.next("end").reason


def test_who_wants_to_leave_carries_on_until_a_checkpoint_where_nobody_else_is_left(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    plan = started(run, 2)
    leaving, dead = run.members(plan)
    run.kill(dead)
    leaving.next("fence")
    leaving.stub.Leave(pb.LeaveRequest(worker_id=leaving.worker_id, reason="SIGTERM"), timeout=5)
    leaving.recover(plan, 20, UNITS, fenced=True)
    answer = leaving.next_plan("survivors")
    assert answer.placement.workers == (leaving.worker_id,)
    leaving.enter(answer, 20)
    assert "too few workers stay" in leaving.next("drain").reason


def test_a_new_process_in_its_pod_says_that_a_member_has_ended(world: Callable[..., World]) -> None:
    run, plan = pipeline(world, 3)
    first, second, dead = run.members(plan)
    dead.silence()
    run.restart_controller()
    for worker in (first, second):
        worker.connect_again()
    successor = ScriptedWorker(run.folder, dead.ordinal, uid=dead.worker_id.split("/")[0]).join()
    run.workers.append(successor)
    for worker in (first, second):
        worker.next("fence")
        worker.recover(plan, 20, UNITS, fenced=True)
    answer = first.next_plan("survivors")
    assert answer.start_tag == at(plan, 20)
    line = wait_for(lambda: (found := plan_lines(run))[1:] and found[-1], "the plan's line")
    assert line["answers"]["ended"] == [dead.worker_id]


def test_late_word_of_a_superseded_plan_is_answered_with_the_newest(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller={**QUICK, "dead_after_seconds": 1.0})
    plan = started(run, 2)
    survivor, late = run.members(plan)
    late.silence()
    survivor.recover(plan, 20, UNITS)
    answer = survivor.next_plan("survivors")
    assert answer.placement.workers == (survivor.worker_id,)
    survivor.enter(answer, 20)
    back = late
    back.register()
    back.watch()
    assert back.next("fence").generation.counter == 1
    back.recover(plan, 25, UNITS, fenced=True)
    assert back.next_plan("survivors").generation == answer.generation
    time.sleep(0.3)
    assert run.operator.status().generation.counter == answer.generation.counter, "it disturbs nobody"
    with pytest.raises(grpc.RpcError) as refused:
        back.ready(plan)
    assert refused.value.code() == grpc.StatusCode.ABORTED


@pytest.mark.parametrize("checkpoint", [0, 28])
def test_a_former_members_old_state_is_no_way_round_what_came_since(world: Callable[..., World], checkpoint: int) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    plan = started(run, 2)
    run.operator.command("reshape", pp_degree=1, dp_degree=1)
    following = run.workers[0].next_plan("continue")
    for worker in run.workers:
        worker.ready(following)
    going_on, spare = run.members(following)[0], run.members(plan)[1]
    going_on.enter(following, 21)
    wait_for(lambda: run.operator.status().generation.counter == following.generation.counter, "the switch is known")
    going_on.heartbeat(30)
    going_on.records(*(record(step) for step in range(1, 30)))
    if checkpoint:
        run.checkpoint(checkpoint)
    run.kill(going_on)
    spare.next("fence")
    spare.recover(plan, 21, UNITS, heard=following, fenced=True)
    answer = answer_to(following, spare)
    assert answer.lineage == 1, "steps up to 29 are known to the world: what is computed from 21 on again is a new lineage"
    if checkpoint:
        assert (answer.start, answer.start_step) == ("checkpoint", 28)
        assert "back to step 28: survivors hold nothing newer than step 21" in answer.reason
    else:
        assert (answer.start, answer.start_tag) == ("survivors", at(plan, 21))


def test_a_lineage_that_no_plan_began_leaves_no_trace(world: Callable[..., World]) -> None:
    run, plan = pipeline(world, 4)
    behind, torn, other, dead = run.members(plan)
    run.kill(dead)
    behind.recover(plan, 20, UNITS, prepared=True)
    torn.recover(plan, 20, ())
    other.recover(plan, 20, range(2), tag=at(plan, 21), seen=())
    lossy = behind.next_plan("survivors")
    assert (lossy.start_tag, lossy.lineage) == (at(plan, 20), 1)
    run.kill(other)
    behind.next("fence")
    behind.recover(plan, 20, UNITS, prepared=True, heard=lossy, fenced=True)
    torn.recover(plan, 20, (), heard=lossy, seen=[vote_of(plan, 21)])  # the vote is known after all
    answer = behind.next_plan("survivors")
    assert (answer.start_tag, answer.lineage) == (at(plan, 21), 0)
    for worker in (behind, torn):
        worker.enter(answer, 21)
    behind.records(*(record(step) for step in range(1, 23)))
    assert [line.get("step") for line in run.lines("metrics.jsonl")] == list(range(1, 23)), "no cut, no hole"


def test_records_of_the_generation_that_ended_are_taken(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    plan = started(run, 2)
    survivor, dead = run.members(plan)
    survivor.records(*(record(step) for step in range(1, 19)))
    run.kill(dead)
    survivor.recover(plan, 20, UNITS)
    survivor.next_plan("survivors")
    assert survivor.records(record(18), record(19), record(20)).durable_step == 20
    assert [line["step"] for line in run.lines("metrics.jsonl")] == list(range(1, 21))


def test_an_ended_process_does_not_come_back(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    plan = started(run, 2)
    _, dead = run.members(plan)
    run.kill(dead)
    with pytest.raises(grpc.RpcError) as refused:
        dead.register()
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "has ended" in refused.value.details()


def test_a_joiner_that_gives_up_disturbs_only_the_plan_that_names_it(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller={**QUICK, "start_timeout_seconds": 0.3, "join_settle_seconds": 0.0})
    plan = started(run, 1)
    joiner = run.join(1)[0]
    following = joiner.next_plan("continue")
    request = pb.ReportRecoveryRequest(
        worker_id=joiner.worker_id, incarnation=1, generation={"incarnation": 1, "counter": following.generation.counter},
        error="ValueError: no room",
    )  # fmt: skip
    joiner.stub.ReportRecovery(request, timeout=5)
    assert "no room" in run.workers[0].next("withdraw").reason
    assert run.operator.status().generation.counter == plan.generation.counter


def test_crash_at_the_same_step_over_and_over_ends_the_run_with_the_first_error(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller={**QUICK, "fruitless_recoveries_max": 2})
    plan = started(run, 2)
    first = at(plan, 20)
    for attempt in range(3):
        for worker in run.workers:
            worker.recover(plan, 20, UNITS, tag=first, error=f"Traceback: error {attempt}")
        if attempt < 2:
            plan = run.workers[0].next_plan("survivors")
            for worker in run.workers:
                worker.enter(plan, 20)
            failures(run, attempt + 1)
    reason = run.workers[0].next("end").reason
    assert "first error: Traceback: error 0" in reason
    assert "2 recoveries in a row without one step beyond step 20" in reason
    result = json.loads((run.folder / "result.json").read_text())
    assert (result["status"], result["crash_loop"]) == ("failed", True)


class TestController:
    def test_killed_with_a_failure_pending_its_successor_answers(self, world: Callable[..., World]) -> None:
        run, plan = pipeline(world, 3)
        first, second, dead = run.members(plan)
        run.kill(dead)
        first.next("fence")
        first.recover(plan, 20, UNITS, fenced=True)
        run.restart_controller()
        began = time.monotonic()
        for worker in (first, second):
            worker.connect_again()
        first.recover(plan, 20, UNITS, fenced=True)  # sent again, as after every registration
        second.next("fence")
        second.recover(plan, 20, UNITS, fenced=True)
        first.told_of_end(dead)
        answer = first.next_plan("survivors")
        assert time.monotonic() - began < 5
        assert (answer.generation.incarnation, answer.start_tag) == (2, at(plan, 20))

    def test_a_member_that_only_waits_is_a_sign(self, world: Callable[..., World]) -> None:
        run = world(placement={"workers": 2}, controller=QUICK)
        plan = started(run, 2)
        run.restart_controller()
        for worker in run.workers:
            worker.phase = "recovery"
            worker.connect_again()
        for worker in run.workers:
            assert worker.next("fence").generation.counter == 1
            worker.recover(plan, 20, UNITS, fenced=True)
        assert run.workers[0].next_plan("survivors").start_tag == at(plan, 20)

    def test_unreachable_it_is_waited_for_and_a_dead_member_that_it_never_knew_counts(self, world: Callable[..., World]) -> None:
        run = world(placement={"workers": 2}, controller=QUICK)
        plan = started(run, 2)
        survivor, dead = run.members(plan)
        dead.silence()
        run.restart_controller()
        began = time.monotonic()
        survivor.connect_again()
        survivor.told_of_end(dead)
        survivor.next("fence")
        survivor.recover(plan, 20, UNITS, fenced=True)
        assert survivor.next_plan("survivors").placement.workers == (survivor.worker_id,)
        assert time.monotonic() - began < 5


class TestRunEpoch:
    def test_a_world_that_nobody_hears_of_is_fenced_by_a_new_epoch(self, world: Callable[..., World]) -> None:
        run = world(placement={"workers": 2}, controller={**QUICK, "dead_after_seconds": 1.0, "start_timeout_seconds": 0.5})
        plan = started(run, 2)
        run.checkpoint(12)
        old = list(run.workers)
        for worker in old:
            worker.silence()
        fresh = run.join(2)
        answer = fresh[0].next_plan("checkpoint")
        assert (answer.run_epoch, answer.start_step, answer.lineage) == (1, 12, 1)
        assert "may still run and none of its members reports" in answer.reason
        epoch = json.loads((run.folder / "checkpoints" / "epochs" / "1.json").read_text())
        assert (epoch["run_epoch"], epoch["plan"]) == (1, str(answer.generation))
        for worker in fresh:
            worker.enter(answer, 12)
        assert wait_for(lambda: run.operator.status().run_epoch, "the epoch is shown") == 1
        back = old[0]
        back.register()
        back.watch()
        assert back.next("fence").generation.counter == plan.generation.counter
        back.records(record(12), record(25))
        assert [line["step"] for line in run.lines("metrics.jsonl") if "step" in line] == [12], "what the new epoch starts from"

    def test_ended_members_need_no_new_epoch(self, world: Callable[..., World]) -> None:
        run = world(placement={"workers": 2}, controller={**QUICK, "start_timeout_seconds": 0.5})
        plan = started(run, 2)
        old = list(run.workers)
        fresh = run.join(2)
        for worker in old:
            worker.silence()
            fresh[0].told_of_end(worker)
        answer = answer_to(plan, fresh[0])
        assert (answer.start, answer.run_epoch, answer.lineage) == ("fresh", 0, 1)
        assert "back to step 0" in answer.reason


class TestBuddies:
    def test_plans_name_buddies_in_other_domains_and_status_shows_them(self, world: Callable[..., World]) -> None:
        run, plan = pipeline(world, 3)
        for unit in UNITS:
            owner, buddy = plan.placement.owners(unit)[0], plan.buddies[unit]
            assert buddy not in ("", owner)
        assert plan.uncovered == ()
        status = run.operator.status()
        keeps = {worker.worker_id: list(worker.keeps) for worker in status.workers}
        assert keeps == {worker: plan.wards_of(worker) for worker in plan.placement.workers}
        assert sorted(unit for units in keeps.values() for unit in units) == list(UNITS)

    def test_one_node_leaves_everything_uncovered(self, world: Callable[..., World]) -> None:
        run = world(placement={"workers": 2, "pp_degree": 2}, controller=QUICK)
        run.workers = [ScriptedWorker(run.folder, ordinal, node="node-0").join() for ordinal in range(2)]
        plan = run.workers[0].next_plan("fresh")
        assert (plan.buddies, plan.uncovered) == (("",) * 6, tuple(UNITS))
        for worker in run.workers:
            worker.enter(plan, 0)
        assert wait_for(lambda: list(run.operator.status().uncovered_units), "shown") == list(UNITS)

    def test_switched_off(self, world: Callable[..., World]) -> None:
        _, plan = pipeline(world, 2, placement={"buddies": False})
        assert (plan.buddies, plan.uncovered) == (("",) * 6, tuple(UNITS))


class TestJoins:
    def test_several_at_once_cost_one_reshape(self, world: Callable[..., World]) -> None:
        settle = {"join_settle_seconds": 0.8, "join_pause_seconds": 0.0, "start_timeout_seconds": 0.3}
        run = world(placement={"workers": 4}, controller={**QUICK, **settle})
        started(run, 1)
        for _ in range(3):
            run.join(1)
            time.sleep(0.1)
        joined = time.monotonic()
        plan = run.workers[0].next_plan("continue")
        assert time.monotonic() - joined > 0.5, "the last one had its time to settle too"
        for worker in run.members(plan):
            worker.ready(plan)
            worker.enter(plan, 22)
        time.sleep(1.5)
        assert [line["start"] for line in plan_lines(run)] == ["fresh", "continue"]

    def test_churn_is_taken_in_no_oftener_than_the_pause_allows(self, world: Callable[..., World]) -> None:
        patience = {"join_settle_seconds": 0.0, "join_pause_seconds": 2.0, "start_timeout_seconds": 0.3}
        run = world(placement={"workers": 3}, controller={**QUICK, **patience})
        started(run, 1)
        member = run.workers[0]
        churning = run.join(1)[0]
        plan = member.next_plan("continue")
        prepared = time.monotonic()
        assert churning.worker_id in plan.placement.workers
        run.kill(churning)
        assert "is gone" in member.next("withdraw").reason
        run.join(1)
        again = member.next_plan("continue")
        assert time.monotonic() - prepared > 1.5
        assert run.workers[2].worker_id in again.placement.workers
