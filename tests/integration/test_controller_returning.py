"""Returns after a failure: controllers, workers of an abandoned generation, processes that have ended
(docs/protocols.md 5)."""

import json
import time
from collections.abc import Callable

import grpc
import pytest

from tests.in_time import fastest_of_three, in_time
from tests.integration.recovery_world import QUICK, SOON_GONE, UNITS, answer_to, failures, pipeline, plan_lines, started
from tests.integration.scripted_worker import ScriptedWorker, at, record, vote_of, wait_for
from tests.integration.scripted_world import World, world

__all__ = ["world"]


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


def test_a_pod_that_lost_all_its_workers_at_once_loses_no_step(world: Callable[..., World]) -> None:
    """SIGKILL of the process that forks the workers also kills the process that would have reported their ends."""
    placement = {"workers": 4, "workers_per_pod": 2, "initial_pp_degree": 4}
    run = world(placement=placement, controller={**QUICK, "dead_after_seconds": 60.0})
    places = [(pod, local_rank) for pod in range(2) for local_rank in range(2)]
    run.workers = [ScriptedWorker(run.folder, pod, local_rank=local_rank).join() for pod, local_rank in places]
    for worker in run.workers:
        plan = worker.next_plan("fresh")
        worker.enter(plan, 0)
    run.at(20)
    first, second, *dead = run.workers
    for worker in dead:
        worker.silence()
    for place, worker in enumerate(dead):
        run.workers.append(ScriptedWorker(run.folder, worker.ordinal, local_rank=place).join())
    for worker in (first, second):
        worker.next("fence")
        worker.recover(plan, 20, UNITS, fenced=True)
    assert first.next_plan("survivors").start_tag == at(plan, 20)
    line = wait_for(lambda: (found := plan_lines(run))[1:] and found[-1], "the plan's line")
    assert line["answers"]["ended"] == sorted(worker.worker_id for worker in dead)


def test_a_pod_that_starts_more_workers_than_the_run_has_a_pod_ends_none_of_them(world: Callable[..., World]) -> None:
    """A pod made anew after an upgrade that the run refused; its second worker was taken for the first's successor."""
    run, plan = pipeline(world, 2)
    first, _ = run.members(plan)
    beside = ScriptedWorker(run.folder, first.ordinal, uid=first.worker_id.split("/")[0], local_rank=1)
    with pytest.raises(grpc.RpcError, match=r"is number 2 of its pod, .*workers_per_pod is 1"):
        beside.register()
    beside.channel.close()
    first.register()
    run.at(24)
    assert run.events("failure") == []


def test_a_member_that_was_given_up_while_its_stream_lived_is_asked_in_the_next_failure(world: Callable[..., World]) -> None:
    """A short partition loses heartbeats and no connection (chaos, seed 20261427: the answer waited for it for ever)."""
    quick = {**QUICK, **SOON_GONE, "join_settle_seconds": 0.0, "join_pause_seconds": 0.0}
    run = world(placement={"workers": 2, "pp_degree": 1, "dp_degree": 2}, controller=quick)
    plan = started(run, 2)
    quiet, other = run.members(plan)
    quiet._beating.set()
    other.next("fence")
    other.recover(plan, 20, UNITS, fenced=True)
    alone = other.next_plan("survivors")
    other.enter(alone, 20)
    stream = quiet._threads[0]
    quiet.register()
    stream.join(60)
    assert not stream.is_alive(), "it opens another, which begins with all that is in force"
    quiet.watch()
    quiet.phase = "recovery"  # the fence has reached it: it is in no step of the generation that is over
    quiet._beating.clear()
    quiet.beat()
    together = other.next_plan("continue")
    quiet.phase = "forward"
    for worker in (quiet, other):
        worker.ready(together)
        worker.enter(together, 30)
    wait_for(lambda: run.operator.status().generation.counter == together.generation.counter, "the switch is known")
    other.silence()
    quiet.reported_end_of(other)
    while quiet.next("fence").generation.counter < together.generation.counter:
        pass  # earlier ones, of the generation that it was given up in


def test_a_member_whose_heartbeats_come_and_whose_stream_does_not_is_waited_for_no_longer_than_a_silent_one(
    world: Callable[..., World],
) -> None:
    """It cannot be asked for its state, and the answer needs its units: nobody else has them."""
    run, plan = pipeline(world, 3, placement={"buddies": False}, controller=SOON_GONE)
    first, deaf, dead = run.members(plan)
    deaf._stream.cancel()
    run.kill(dead)
    first.next("fence")
    first.recover(plan, 20, plan.held_by(first.worker_id), fenced=True)
    answer = answer_to(plan, first)
    assert deaf.worker_id not in answer.participants
    assert plan_lines(run)[-1]["answers"]["silent"] == [deaf.worker_id]


def test_late_word_of_a_superseded_plan_is_answered_with_the_newest(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
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
    spare.recover(plan, 21, UNITS, newest_received=following, fenced=True)
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
    behind.recover(plan, 20, UNITS, prepared=True, newest_received=lossy, fenced=True)
    torn.recover(plan, 20, (), newest_received=lossy, seen=[vote_of(plan, 21)])  # the report shows the vote after all
    answer = behind.next_plan("survivors")
    assert (answer.start_tag, answer.lineage) == (at(plan, 21), 0)
    for worker in (behind, torn):
        worker.enter(answer, 21)
    behind.records(*(record(step) for step in range(1, 23)))
    assert [line.get("step") for line in run.lines("metrics.jsonl")] == list(range(1, 23)), "no cut, no hole"


def test_an_ended_process_does_not_come_back(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    plan = started(run, 2)
    _, dead = run.members(plan)
    run.kill(dead)
    with pytest.raises(grpc.RpcError) as refused:
        dead.register()
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "has ended" in refused.value.details()


@pytest.mark.parametrize("restarted", [False, True])
def test_crash_at_the_same_step_over_and_over_ends_the_run_with_the_first_error(
    restarted: bool, world: Callable[..., World]
) -> None:
    """Also where the controller changes in the middle of the series."""
    run = world(placement={"workers": 2}, controller={**QUICK, "fruitless_recoveries_max": 2})
    plan = started(run, 2)
    first = at(plan, 20)
    for attempt in range(3):
        for worker in run.workers:
            worker.recover(plan, 20, UNITS, tag=first, error=f"Traceback: error {attempt}")
        if attempt < 2:
            plan = answer_to(plan, run.workers[0])
            for worker in run.workers:
                worker.enter(plan, 20)
            failures(run, attempt + 1)
        if restarted and attempt == 0:
            run.restart_controller()
            for worker in run.workers:
                worker.connect_again()
    reason = run.workers[0].next("end").reason
    assert "first error: Traceback: error 0" in reason
    assert "2 recoveries in a row without one step beyond step 20" in reason
    result = json.loads((run.folder / "result.json").read_text())
    assert (result["status"], result["crash_loop"]) == ("failed", True)


class TestController:
    @fastest_of_three
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
        first.reported_end_of(dead)
        answer = first.next_plan("survivors")
        in_time(time.monotonic() - began, 5.0, "the answer")
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

    @fastest_of_three
    def test_unreachable_it_is_waited_for_and_a_dead_member_that_it_never_knew_counts(self, world: Callable[..., World]) -> None:
        run = world(placement={"workers": 2}, controller=QUICK)
        plan = started(run, 2)
        survivor, dead = run.members(plan)
        dead.silence()
        run.restart_controller()
        began = time.monotonic()
        survivor.connect_again()
        survivor.reported_end_of(dead)
        survivor.next("fence")
        survivor.recover(plan, 20, UNITS, fenced=True)
        assert survivor.next_plan("survivors").placement.workers == (survivor.worker_id,)
        in_time(time.monotonic() - began, 5.0, "the answer")


class TestRunEpoch:
    def test_a_world_that_nobody_hears_of_is_fenced_by_a_new_epoch(self, world: Callable[..., World]) -> None:
        run = world(placement={"workers": 2}, controller={**QUICK, **SOON_GONE})
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
        run = world(placement={"workers": 2}, controller=QUICK)
        plan = started(run, 2)
        old = list(run.workers)
        fresh = run.join(2)
        for worker in old:
            worker.silence()
            fresh[0].reported_end_of(worker)
        answer = answer_to(plan, fresh[0])
        assert (answer.start, answer.run_epoch, answer.lineage) == ("fresh", 0, 1)
        assert "back to step 0" in answer.reason
