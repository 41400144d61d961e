"""Failures over real sockets: fences, reports, the recovery's plan, and further faults meanwhile (docs/protocols.md 4)."""

import time
from collections.abc import Callable

from frostline_proto.v1 import control_pb2 as pb
from tests.in_time import fastest_of_three, in_time
from tests.integration.recovery_world import QUICK, SOON_GONE, UNITS, answer_to, failures, pipeline, plan_lines, started
from tests.integration.scripted_worker import at, record, statistics, vote_of, wait_for
from tests.integration.scripted_world import World, world
from tests.integration.test_controller_restart import FREEZE_AT_1

__all__ = ["world"]


@fastest_of_three
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
    in_time(time.monotonic() - killed, 1.0, "the answer")
    assert (answer.lineage, answer.start_tag, answer.vote) == (0, at(plan, 20), None)
    assert (answer.base, answer.placement.workers) == (plan.generation, (survivor.worker_id,))
    assert [answer.holders_of(unit) for unit in UNITS] == [[survivor.worker_id]] * 6
    assert set(answer.sources) == {answer.state_source} == {survivor.worker_id}
    survivor.enter(answer, 20)
    reported = failures(run)[0]
    assert "all units at step 20 from survivors" in reported["reason"]
    assert "is gone: exit -9" in reported["reason"]
    assert (reported["lost_steps"], reported["step"]) == (0, 20)
    assert 0 < reported["seconds"] < 5
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


def test_a_plan_that_was_never_ready_costs_nothing_when_its_only_member_is_cut_off(world: Callable[..., World]) -> None:
    """The run shrinks to one worker, which is cut off before it has prepared: no worker can have switched to that plan."""
    run = world(placement={"workers": 2}, controller={**QUICK, **SOON_GONE})
    plan = started(run, 2)
    run.operator.command("reshape", pp_degree=1, dp_degree=1)
    prepared = run.workers[0].next_plan("continue")
    (lone,) = (worker for worker in run.workers if worker.worker_id in prepared.placement.workers)
    (survivor,) = (worker for worker in run.workers if worker is not lone)
    survivor.ready(prepared)
    lone.silence()
    survivor.next("fence")
    survivor.recover(plan, 20, UNITS, newest_received=prepared, fenced=True, error="")
    answer = answer_to(prepared, survivor)
    assert (answer.start, answer.start_tag) == ("survivors", at(plan, 20))
    assert (answer.run_epoch, answer.lineage) == (0, 0)


def test_who_gives_state_and_is_lost_with_its_machine_is_not_waited_for_long(world: Callable[..., World]) -> None:
    """One of two is to go on alone with the units of both; the other falls silent before it has sent its units."""
    run, plan = pipeline(world, controller=SOON_GONE)
    run.checkpoint(12)
    run.operator.command("reshape", pp_degree=1, dp_degree=1)
    prepared = run.workers[0].next_plan("continue")
    for worker in run.workers:
        worker.recover(plan, 20, plan.placement.units_of(worker.worker_id), newest_received=prepared)
    answer = answer_to(prepared, run.workers[0])
    (member,) = (worker for worker in run.workers if worker.worker_id in answer.placement.workers)
    (giver,) = (worker for worker in run.workers if worker.worker_id in answer.leavers)
    giver.silence()
    while member.next("fence").generation.counter != answer.generation.counter:
        pass
    member.recover(plan, 20, plan.placement.units_of(member.worker_id), newest_received=answer, fenced=True, error="")
    after = answer_to(answer, member)
    assert (after.start, after.start_step) == ("checkpoint", 12), "long before the deadline of 120 s"
    log = (run.folder / "controller.log").read_text()
    assert f"it was to give its state to members of {answer.generation}" in log


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
    reported = failures(run)[0]
    assert f"back to step 12: units {lacking} are held by nobody" in reported["reason"]
    assert (reported["lost_steps"], reported["lineage"]) == (8, 1)
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
    behind.recover(plan, 20, UNITS, seen=[vote_of(plan, 21)])  # has seen the vote of step 21, and has lost its gradients
    ahead.recover(plan, 21, range(2), seen=[vote_of(plan, 21)])
    answer = behind.next_plan("survivors")
    assert (answer.start_tag, answer.lineage) == (at(plan, 20), 1)
    assert "where lineage 1 begins" in answer.reason
    for worker in (behind, ahead):
        worker.enter(answer, 20)
    behind.records(record(21, lineage=1, generation=str(answer.generation)))
    assert {"lineage": 1, "starts_at_step": 20} in run.lines("metrics.jsonl")


def test_a_recovery_that_fails_itself_goes_on_with_the_vote_of_its_plan(world: Callable[..., World]) -> None:
    run, plan = pipeline(world, 3)
    behind, ahead, dead = run.members(plan)
    run.kill(dead)
    behind.recover(plan, 20, UNITS, prepared=True)
    ahead.recover(plan, 21, UNITS, seen=[vote_of(plan, 21)])
    interrupted = behind.next_plan("survivors")
    run.kill(ahead)
    assert behind.next("fence").generation.counter == interrupted.generation.counter
    behind.recover(plan, 20, UNITS, newest_received=interrupted, prepared=True, fenced=True)
    answer = behind.next_plan("survivors")
    assert (answer.base, answer.start_tag, answer.vote) == (interrupted.generation, at(plan, 21), vote_of(plan, 21))
    behind.enter(answer, 21)
    reported = failures(run, 2)
    assert "(interrupted)" in reported[0]["reason"]
    assert "all units at step 21" in reported[1]["reason"]


def test_a_promise_for_an_older_plan_is_asked_for_again(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    first = started(run, 2)
    run.operator.command("reshape", pp_degree=2, dp_degree=1)
    following = run.workers[0].next_plan("continue")
    members = run.members(first)
    members[0].recover(first, 20, UNITS)  # has not received the plan
    fence = members[0].next("fence")
    assert fence.generation.counter == following.generation.counter
    members[1].recover(first, 20, UNITS, newest_received=following)
    time.sleep(0.3)
    assert run.operator.status().generation.counter == first.generation.counter, "half a promise starts nothing"
    members[0].recover(first, 20, UNITS, newest_received=following)
    assert members[0].next_plan("survivors").generation.counter > following.generation.counter


def test_some_have_switched_and_some_have_not(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    first = started(run, 2)
    run.operator.command("reshape", pp_degree=2, dp_degree=1)
    following = run.workers[0].next_plan("continue")
    assert [following.holders_of(unit) for unit in (0, 5)] == [list(following.placement.workers)] * 2
    behind, ahead = run.members(first)
    ahead.recover(
        following, 21, UNITS, tag=at(first, 21), seen=[vote_of(first, 21)], switched=following, newest_received=following
    )
    behind.next("fence")
    behind.recover(first, 20, UNITS, prepared=True, newest_received=following, fenced=True)
    answer = behind.next_plan("survivors")
    assert (answer.start_tag, answer.vote) == (at(first, 21), vote_of(first, 21))
    lines = wait_for(lambda: (found := plan_lines(run))[2:] and found, "the plan that ran unseen is in the history")
    assert [(line["start"], line["first_step"]) for line in lines] == [("fresh", 1), ("continue", 22), ("survivors", 22)]


def test_the_only_holder_takes_part_though_it_leaves(world: Callable[..., World]) -> None:
    run, plan = pipeline(world, 3)
    leaving, staying, dead = run.members(plan)
    leaving.stub.Leave(pb.LeaveRequest(worker_id=leaving.worker_id, reason="SIGTERM"), timeout=60)
    following = staying.next_plan("continue")
    assert leaving.worker_id in following.leavers
    run.kill(dead)
    leaving.recover(plan, 20, UNITS, newest_received=following)
    staying.recover(plan, 20, range(1, 6), newest_received=following)
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
    leaving.stub.Leave(pb.LeaveRequest(worker_id=leaving.worker_id, reason="SIGTERM"), timeout=60)
    leaving.recover(plan, 20, UNITS, fenced=True)
    answer = leaving.next_plan("survivors")
    assert answer.placement.workers == (leaving.worker_id,)
    leaving.enter(answer, 20)
    assert "too few workers stay" in leaving.next("drain").reason
    run.checkpoint(20, generation=str(answer.generation))
    leaving.records(outcome=pb.RunOutcome(status="suspended", steps=20))
    assert "goes on by itself from step 20 when min_workers (1) workers are there" in leaving.next("end").reason
    assert run.operator.status().state == "waiting"


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


def test_a_decision_that_a_restore_keeps_is_due_for_who_joins_later_and_void_where_it_is_given_up(
    world: Callable[..., World],
) -> None:
    """The decision's interval ends where the restore begins: taken in lineage 0, it comes into force in lineage 1."""
    placement = {"workers": 2, "min_workers": 2, "pp_degree": 2, "dp_degree": 1}
    run = world(freeze=FREEZE_AT_1, placement=placement, controller=QUICK)
    plan = run.start(2)
    run.at(9)
    first, dead = run.members(plan)
    first.report(statistics(1))
    assert (first.next("decision").number, dead.next("decision").number) == (1, 1)
    run.checkpoint(8)
    run.kill(dead)
    first.recover(plan, 9, plan.placement.units_of(first.worker_id))
    second = run.join(1)[0]
    restored = second.next_plan("checkpoint")
    for worker in (first, second):
        worker.enter(restored, 8)
    run.at(9)
    run.kill(second)
    first.recover(restored, 9, UNITS)
    answer = run.join(1)[0].next_plan("survivors")
    for one in (restored, answer):
        assert (1, 1, 11, 2) in {(d.decided_in, d.number, d.effective_step, d.freeze_point) for d in one.decisions}
    void = pb.RunEvent(kind="decision_void", step=10, lineage=1, reason="did not come in time", detail={"number": "1"})
    first.records(events=[void])
    wait_for(lambda: [one["void"] for one in run.lines("plans.jsonl") if one["kind"] == "decision"] == [False, True], "void")
