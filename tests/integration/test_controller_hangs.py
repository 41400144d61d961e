"""Hangs over real sockets: a hanging worker is asked for its stacks, fenced by a plan without it, and killed afterwards."""

import signal
import time
from collections.abc import Callable

import grpc
import pytest

from frostline_contract.plan import Plan
from frostline_proto.v1 import control_pb2 as pb
from tests.in_time import fastest_of_three, in_time
from tests.integration.reporting_worker import CONTROLLER, FLOOR, UNITS, USUAL, ReportingWorker, hangs, started
from tests.integration.scripted_worker import ScriptedWorker, wait_for
from tests.integration.scripted_world import World, world

__all__ = ["started", "world"]


def report_stack(worker: ScriptedWorker, reason: str) -> None:
    event = pb.RunEvent(kind="hang", step=20, reason=reason, detail={"worker": worker.worker_id, "stack": "in user code, line 7"})
    worker.records(events=[event])


@fastest_of_three
def test_a_deadlocked_member_is_asked_for_its_stacks_and_excluded(started: Callable[..., tuple[World, Plan]]) -> None:
    run, plan = started(3)
    stuck, *others = run.members(plan)
    began = time.monotonic()
    stuck.stand("schedule")
    for other in others:
        other.stand("exchange", waiting=True)
    notice = stuck.next("stack")
    report_stack(stuck, notice.reason)
    fence = others[0].next("fence")
    assert time.monotonic() - began >= FLOOR
    in_time(time.monotonic() - began, FLOOR + 2.0, "the fence, whose deadline is two seconds before that,")
    assert fence.reason.startswith(
        f"worker trainer-{stuck.ordinal} is excluded: worker trainer-{stuck.ordinal} hangs in schedule"
    )
    for other in others:
        other.recover(plan, 20, UNITS, fenced=True, error="")
    answer = others[0].next_plan("survivors")
    in_time(time.monotonic() - began, FLOOR + 2.5, "the plan without it")
    assert stuck.worker_id not in answer.participants
    (reported,) = wait_for(lambda: hangs(run), "the event")
    assert (reported["step"], reported["detail"]["stack"]) == (20, "in user code, line 7")
    assert reported["detail"]["worker"] == stuck.worker_id
    assert reported["seconds"] >= FLOOR
    assert reported["reason"].startswith(f"worker trainer-{stuck.ordinal} hangs in schedule after step 20, for ")
    with pytest.raises(grpc.RpcError, match="is excluded: "):
        stuck.register()  # its heartbeats go on until its pod is deleted, and are answered that it is unknown
    gone = {worker.worker_id: worker.state for worker in run.operator.status().workers}
    assert gone[stuck.worker_id] == "gone"


def test_who_hangs_makes_place_where_the_answer_needs_a_replacement(world: Callable[..., World]) -> None:
    """Only `placement.min_workers` workers exist: the pod is deleted before there is a plan; its replacement is in the plan."""
    run = world(placement={"workers": 2, "min_workers": 2}, controller=CONTROLLER)
    run.workers = [ReportingWorker(run.folder, ordinal).join() for ordinal in range(2)]
    for worker in run.workers:
        plan = worker.next_plan("fresh")
        worker.enter(plan, 0)
    run.at(20)
    stuck, other = run.workers
    stuck.stand("schedule")
    other.stand("exchange", waiting=True)
    other.next("fence")
    other.recover(plan, 20, UNITS, fenced=True, error="")
    waiting = "waiting for workers after a failure: 1 of at least 2 are there"
    wait_for(lambda: run.operator.status().message.startswith(waiting), "the status says what it waits for")
    shown = {worker.worker_id: worker.state for worker in run.operator.status().workers}
    assert shown[stuck.worker_id] == "gone", "its pod is given up while the answer waits"
    (fresh,) = run.join(1)
    answer = other.next_plan("survivors")
    assert set(answer.placement.workers) == {other.worker_id, fresh.worker_id}


def test_whoever_shares_the_pod_of_an_excluded_member_is_in_no_plan_either(world: Callable[..., World]) -> None:
    """The pod is deleted once the next plan is sent: a plan that names its other worker would fail at once."""
    run = world(placement={"workers": 4, "workers_per_pod": 2}, controller=CONTROLLER)
    run.workers = [ReportingWorker(run.folder, place // 2, local_rank=place % 2).join() for place in range(4)]
    for worker in run.workers:
        plan = worker.next_plan("fresh")
        worker.enter(plan, 0)
    run.at(20)
    stuck, *others = run.workers
    stuck.stand("schedule")
    for other in others:
        other.stand("exchange", waiting=True)
    others[0].next("fence")
    for other in others:
        other.recover(plan, 20, UNITS, fenced=True, error="")
    answer = others[1].next_plan("survivors")
    assert set(answer.participants) == {worker.worker_id for worker in run.workers if worker.ordinal == 1}
    with pytest.raises(grpc.RpcError, match="is excluded: "):
        others[0].register()


def test_exclusions_at_one_step_are_charged_to_the_retry_budget(started: Callable[..., tuple[World, Plan]]) -> None:
    run, plan = started(2, fruitless_recoveries_max=1)
    first, second = run.members(plan)
    first.stand("schedule")
    second.stand("exchange", waiting=True)
    second.next("fence")
    second.recover(plan, 20, UNITS, fenced=True, error="")
    second.stands = None
    alone = second.next_plan("survivors")
    second.enter(alone, 20)
    second.stand("schedule")
    assert second.next("fence").generation.counter == alone.generation.counter
    joiner = run.join(1)[0]
    reason = joiner.next("end").reason
    assert "1 recoveries in a row without one step beyond step 20; first error: " in reason
    assert f"worker trainer-{first.ordinal} hangs in schedule" in reason


@fastest_of_three
def test_a_frozen_member_is_excluded_although_it_says_nothing_any_more(started: Callable[..., tuple[World, Plan]]) -> None:
    run, plan = started(3)
    frozen, *others = run.members(plan)
    began = time.monotonic()
    for other in others:
        other.stand("vote", waiting=True)
    frozen._beating.set()  # its stream stays open, as a stopped process's does
    others[0].next("fence")
    assert time.monotonic() - began >= FLOOR
    in_time(time.monotonic() - began, FLOOR + 2.0, "the fence")
    for other in others:
        other.recover(plan, 20, UNITS, fenced=True, error="")
    answer = others[0].next_plan("survivors")
    assert frozen.worker_id not in answer.participants
    (reported,) = wait_for(lambda: hangs(run), "the event")
    assert reported["detail"]["stack"] == ""
    assert "is silent for" in reported["reason"]


def test_who_waits_for_a_member_that_has_just_been_given_up_is_not_blamed(started: Callable[..., tuple[World, Plan]]) -> None:
    """The frozen member's silence and the others' wait for it began together, and reach the same deadline."""
    run, plan = started(3, dead_after_seconds=3.0, hang_floor_seconds=3.0)
    frozen, *others = run.members(plan)
    for place, other in enumerate(others):
        other.stand(("norms", "vote")[place], waiting=True)
    frozen._beating.set()
    for other in others:
        other.next("fence")
        other.recover(plan, 20, UNITS, fenced=True, error="")
    answer = others[0].next_plan("survivors")
    assert set(answer.placement.workers) <= {other.worker_id for other in others}
    assert [hang for hang in hangs(run) if hang["detail"]["worker"] != frozen.worker_id] == []
    (line,) = [line for line in run.lines("plans.jsonl") if line.get("start") == "survivors"]
    assert line["answers"]["silent"] == [frozen.worker_id]


def test_where_all_stand_alike_all_are_fenced_and_asked(started: Callable[..., tuple[World, Plan]]) -> None:
    run, plan = started(2, hang_floor_seconds=0.8)
    began = time.monotonic()
    for worker in run.workers:
        worker.stand("exchange", waiting=True)
    for worker in run.workers:
        worker.next("stack")
        worker.next("fence")
    assert time.monotonic() - began >= 3 * 0.8
    for worker in run.workers:
        worker.recover(plan, 20, UNITS, fenced=True, error="")
    answer = run.workers[0].next_plan("survivors")
    assert set(answer.placement.workers) == {worker.worker_id for worker in run.workers}, "nobody is to blame"
    (reported,) = wait_for(lambda: hangs(run), "the event")
    assert reported["detail"]["worker"] == ""
    assert reported["reason"].startswith("all 2 members stand in exchange after step 20")


def test_a_slow_member_with_a_history_and_a_first_step_are_let_be(started: Callable[..., tuple[World, Plan]]) -> None:
    run, plan = started(2)
    slow, other = run.members(plan)
    slow.stand("evaluate", p99={**USUAL, "evaluate": 2.0})
    other.stand("vote", waiting=True)
    time.sleep(FLOOR + 1.5)
    assert run.operator.status().generation.counter == 1
    slow.stand("schedule", p99={})
    other.stand("exchange", waiting=True, p99={})
    time.sleep(FLOOR + 1.5)
    assert hangs(run) == []
    assert run.operator.status().generation.counter == 1


def test_a_machine_that_stood_still_makes_nobody_hang(started: Callable[..., tuple[World, Plan]]) -> None:
    """All processes stood still together: afterwards every phase is overdue at once, and no member hangs."""
    run, plan = started(2, hang_floor_seconds=4.0)
    first, second = run.members(plan)
    first.stand("schedule")
    second.stand("exchange", waiting=True)
    run.controller.send_signal(signal.SIGSTOP)
    time.sleep(6.5)
    run.controller.send_signal(signal.SIGCONT)
    time.sleep(1.0)
    for worker in run.workers:
        worker.stand("schedule", step=21)
    time.sleep(1.0)
    assert hangs(run) == []
    assert run.operator.status().generation.counter == 1
    first.stand("schedule", step=21)
    second.stand("exchange", waiting=True, step=21)
    assert second.next("fence").reason.startswith(f"worker trainer-{first.ordinal} is excluded"), "it goes on to judge"


def test_what_was_reported_before_a_short_stall_makes_nobody_hang(started: Callable[..., tuple[World, Plan]]) -> None:
    """Heartbeats that lay unread meanwhile are overdue by now; the members have gone on since."""
    run, plan = started(2)
    first, second = run.members(plan)
    run.controller.send_signal(signal.SIGSTOP)
    first.stand("schedule")
    second.stand("exchange", waiting=True)
    for worker in run.workers:
        worker.stands["since"] -= FLOOR + 0.5
    time.sleep(1.5)  # so long that heartbeats with these ages lie unread, and a gap is one
    for worker in run.workers:
        worker.stand("schedule", step=21)
    run.controller.send_signal(signal.SIGCONT)
    time.sleep(1.0)
    assert hangs(run) == []
    assert run.operator.status().generation.counter == 1


def test_slowness_is_in_the_status(started: Callable[..., tuple[World, Plan]]) -> None:
    run, plan = started(3)
    work = {worker.worker_id: len(plan.placement.units_of(worker.worker_id)) for worker in run.workers}
    leaves = plan.placement.leaf_bounds
    for worker in run.members(plan):
        dp_rank = plan.placement.shape.dp_rank(plan.placement.workers.index(worker.worker_id))
        worker.busy = 0.01 * work[worker.worker_id] * (leaves[dp_rank + 1] - leaves[dp_rank])
    run.members(plan)[1].busy *= 2

    def read() -> dict[str, float]:
        return {worker.worker_id: worker.slowness for worker in run.operator.status().workers}

    seen = wait_for(lambda: (found := read()) and all(found.values()) and found, "slowness of all")
    by_rank = [round(seen[worker_id], 6) for worker_id in plan.placement.workers]
    assert by_rank[1] == 2.0
    assert max(by_rank[0], by_rank[2]) <= 1.0
    parts = {worker.worker_id: dict(worker.step_parts) for worker in run.operator.status().workers}
    assert parts[plan.placement.workers[1]] == {"schedule": pytest.approx(run.members(plan)[1].busy)}
