"""Scripted runs at step 20 whose members are about to fail, and the controller's answer to a failure."""

from collections.abc import Callable

from frostline_contract.plan import Plan
from tests.integration.scripted_worker import ScriptedWorker, wait_for
from tests.integration.scripted_world import World

QUICK = {"heartbeat_seconds": 2.0, "dead_after_seconds": 30.0, "start_timeout_seconds": 60.0}
"""The workers beat ten times a second; the controller would count a member as lost after some of the seconds given here."""
SOON_GONE = {"dead_after_seconds": 3.0}
"""For a test that waits until a silent worker counts as gone. The others have a long lease: the test's own process sends the
heartbeats, and may stand still for seconds on a busy machine."""
UNITS = range(6)


def started(run: World, count: int, pp_degree: int | None = None) -> Plan:
    """All have entered the first plan, as the controller has told by then, and are at step 20."""
    plan = run.start(count)
    run.at(20)
    wait_for(lambda: run.events("start"), "the start is told")
    assert pp_degree in (None, plan.placement.pp_degree)
    return plan


def failures(run: World, count: int = 1) -> list[dict]:
    return wait_for(lambda: (e := run.events("failure"))[count - 1 :] and e, "the failure event")


def plan_lines(run: World) -> list[dict]:
    return [line for line in run.lines("plans.jsonl") if line["kind"] == "plan"]


def answer_to(plan: Plan, worker: ScriptedWorker) -> Plan:
    """Return the next plan after `plan` that reaches a worker."""
    answer = worker.next_plan()
    while not plan.generation < answer.generation:
        answer = worker.next_plan()
    return answer


def pipeline(world: Callable[..., World], workers: int = 2, **sections) -> tuple[World, Plan]:
    """One replica: each member is the only owner of its units, and keeps its neighbour's."""
    placement = {"workers": workers, "initial_pp_degree": workers, **sections.pop("placement", {})}
    run = world(placement=placement, controller={**QUICK, **sections.pop("controller", {})}, **sections)
    return run, started(run, workers, workers)
