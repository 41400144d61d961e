"""A worker that wants to leave says so to each controller: the one that heard it may die before it has planned without it."""

import time
from collections.abc import Callable

from tests.integration.scripted_worker import Operator, ScriptedWorker, wait_for
from tests.integration.test_controller_restart import Pair, pair

__all__ = ["pair"]


def with_successor(run: Pair) -> tuple[ScriptedWorker, ScriptedWorker]:
    """Replace the controller. Return a member that wants to leave, and the other; the successor has met neither."""
    run.kill_controller()
    run.replace_controller()
    leaver, other = run.workers
    leaver.leaving = "SIGTERM"
    return leaver, other


def test_a_successor_plans_without_a_member_that_had_told_its_predecessor(pair: Callable[..., Pair]) -> None:
    """Chaos, seed 20261372: the member stayed in all plans until its pod's grace was over, and was killed in a step."""
    run = pair(step=5)
    leaver, other = with_successor(run)
    run.return_workers()
    plan = other.next_plan("continue")
    assert plan.placement.workers == (other.worker_id,)
    assert leaver.worker_id in plan.leavers
    assert "trainer-0 leaves: " in plan.reason


def test_a_member_that_wants_to_leave_pauses_no_run_whose_other_members_are_not_back_yet(pair: Callable[..., Pair]) -> None:
    run = pair(step=5)
    leaver, other = with_successor(run)
    leaver.register()
    leaver.watch()
    log = run.folder / "controller.log"
    wait_for(lambda: "worker wants to leave" in log.read_text(), "it is heard")
    time.sleep(0.5)  # several rounds of the controller
    operator = Operator(run.folder)
    assert operator.status().state == "running"
    operator.close()
    other.register()
    other.watch()
    assert other.next_plan("continue").placement.workers == (other.worker_id,)
