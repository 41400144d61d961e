"""Joiners that hang, end, or are left over from a generation that is over, over real sockets."""

import time
from collections.abc import Callable

from frostline_contract.plan import Plan
from frostline_proto.v1 import plan_pb2
from tests.integration.reporting_worker import FLOOR, UNITS, started
from tests.integration.scripted_worker import wait_for
from tests.integration.scripted_world import World, world

__all__ = ["started", "world"]


def test_a_joiner_that_everybody_waits_for_is_to_blame(started: Callable[..., tuple[World, Plan]]) -> None:
    """Members wait to enter a plan whose joiner does not come: no member enters it, so none reports that it has begun.

    Their reshape, without history, has ten floors; the joiner is ready and has only to enter, so it has one.
    """
    run, plan = started(2, wanted=3)
    (joiner,) = run.join(1)
    run.operator.command("reshape", pp_degree=3, dp_degree=1)
    prepared = joiner.next_plan("continue")
    for worker in run.workers:
        worker.ready(prepared)
    run.workers[0].next("ready")
    began = time.monotonic()
    joiner.stand("start", step=0, p99={})
    for worker in run.members(plan):
        worker.stand("reshape", waiting=True, step=prepared.switch_from, p99={})
    fence = run.workers[0].next("fence")
    assert time.monotonic() - began >= FLOOR
    assert fence.reason.startswith(
        f"worker trainer-{joiner.ordinal} is excluded: worker trainer-{joiner.ordinal} hangs in start "
    )
    assert f"the deadline is {FLOOR} s" in fence.reason
    assert wire_tuple(fence.generation) == (prepared.generation.incarnation, prepared.generation.counter)


def test_a_lost_joiner_is_no_failure_of_members_that_still_enter_their_own_generation(
    started: Callable[..., tuple[World, Plan]],
) -> None:
    """The survivors of a failure enter its answer; the next plan is prepared with a joiner already, and the joiner ends."""
    run, plan = started(3)
    lost, *others = run.members(plan)
    run.kill(lost)
    for other in others:
        other.next("fence")
        other.recover(plan, 20, UNITS, fenced=True, error="")
    answer = others[0].next_plan("survivors")
    for other in others:
        other.generation = None
        other.stand("reshape", waiting=True)
    (joiner,) = run.join(1)
    run.operator.command("reshape", pp_degree=3, dp_degree=1)
    prepared = joiner.next_plan("continue")
    assert prepared.base == answer.generation
    run.kill(joiner)
    withdrawn = others[0].next("withdraw")
    assert wire_tuple(withdrawn.generation) == (prepared.generation.incarnation, prepared.generation.counter)
    for other in others:
        other.enter(answer, 20)
        other.stand("schedule", step=21)
    wait_for(lambda: run.events("failure"), "the event of the one failure")
    wait_for(lambda: run.operator.status().step >= 21, "the next step")
    assert len([line for line in run.lines("plans.jsonl") if line.get("start") == "survivors"]) == 1
    assert all(message.WhichOneof("message") != "fence" for other in others for message in list(other.messages.queue))


def wire_tuple(generation: plan_pb2.GenerationId) -> tuple[int, int]:
    return generation.incarnation, generation.counter


def test_who_still_hangs_in_a_generation_that_is_over_is_no_joiner_and_is_taken_away(
    started: Callable[..., tuple[World, Plan]],
) -> None:
    """A controller that dies between fencing a hanging member and killing it leaves that member registered, its stream open."""
    run, plan = started(2, wanted=3, join_settle_seconds=0.1, join_pause_seconds=0.1)
    (stuck,) = run.join(1)
    stuck.generation = plan_pb2.GenerationId(incarnation=0, counter=7)
    stuck.stand("load")
    wait_for(lambda: run.operator.status().workers[2].phase == "load", "its heartbeat")
    run.operator.command("reshape", pp_degree=2, dp_degree=1)
    named = {worker_id for line in run.lines("plans.jsonl") for worker_id in line.get("placement", {}).get("workers", ())}
    assert stuck.worker_id not in named

    def state() -> str:
        return next(worker.state for worker in run.operator.status().workers if worker.worker_id == stuck.worker_id)

    wait_for(lambda: state() == "gone", "its end")
    assert run.operator.status().generation.counter == plan.generation.counter
