"""The choice of buddies, and when joiners and spare workers are taken into a plan."""

import time
from collections.abc import Callable

from frostline_proto.v1 import control_pb2 as pb
from tests.in_time import fastest_of_three, in_time
from tests.integration.recovery_world import QUICK, UNITS, pipeline, plan_lines, started
from tests.integration.scripted_worker import ScriptedWorker, at, wait_for
from tests.integration.scripted_world import World, world

__all__ = ["world"]


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


def test_a_worker_whose_store_has_died_tells_another_port_and_plans_name_it(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller=QUICK)
    plan = started(run, 2)
    first, second = run.members(plan)
    first.store_port = 20000
    first.register()
    run.kill(second)
    first.recover(plan, 20, UNITS)
    assert first.next_plan("survivors").store_port == 20000


def test_a_joiner_that_gives_up_disturbs_only_the_plan_that_names_it(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2}, controller={**QUICK, "start_timeout_seconds": 0.3, "join_settle_seconds": 0.0})
    plan = started(run, 1)
    joiner = run.join(1)[0]
    following = joiner.next_plan("continue")
    request = pb.ReportRecoveryRequest(
        worker_id=joiner.worker_id, incarnation=1, generation={"incarnation": 1, "counter": following.generation.counter},
        error="ValueError: no room",
    )  # fmt: skip
    joiner.stub.ReportRecovery(request, timeout=60)
    assert "no room" in run.workers[0].next("withdraw").reason
    assert run.operator.status().generation.counter == plan.generation.counter


class TestBuddies:
    def test_plans_name_buddies_in_other_domains_and_status_shows_them(self, world: Callable[..., World]) -> None:
        run, plan = pipeline(world, 3)
        for unit in UNITS:
            owner, buddy = plan.placement.owners(unit)[0], plan.buddies[unit]
            assert buddy not in ("", owner)
        assert plan.uncovered == ()
        status = run.operator.status()
        keeps = {worker.worker_id: list(worker.keeps) for worker in status.workers}
        assert keeps == {worker: plan.replicas_kept_by(worker) for worker in plan.placement.workers}
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
    def test_a_replacement_brings_back_the_shape_that_the_job_asks_for_worth_it_or_not(self, world: Callable[..., World]) -> None:
        quick = {**QUICK, "join_settle_seconds": 0.0, "join_pause_seconds": 0.0}
        run = world(placement={"workers": 2, "pp_degree": 1, "dp_degree": 2, "hysteresis": 1000.0}, controller=quick)
        plan = started(run, 2)
        assert (plan.placement.pp_degree, plan.placement.dp_degree) == (1, 2)
        survivor, dead = run.members(plan)
        run.kill(dead)
        survivor.recover(plan, 20, UNITS)
        alone = survivor.next_plan("survivors")
        assert (alone.placement.pp_degree, alone.placement.dp_degree) == (1, 1)
        survivor.enter(alone, 20)
        run.join(1)
        again = survivor.next_plan("continue")
        assert (again.placement.pp_degree, again.placement.dp_degree) == (1, 2)
        assert "fits again" in again.reason

    @fastest_of_three
    def test_several_at_once_cost_one_reshape(self, world: Callable[..., World]) -> None:
        settle = {"join_settle_seconds": 2.0, "join_pause_seconds": 0.0, "start_timeout_seconds": 0.3}
        run = world(placement={"workers": 5}, controller={**QUICK, **settle})  # one worker never comes
        started(run, 1)
        began = time.monotonic()
        for _ in range(2):
            run.join(1)
            time.sleep(0.1)
        joined = time.monotonic()
        run.join(1)
        in_time(time.monotonic() - began, 1.5, "joining, for which nobody waits longer than two seconds,")
        plan = run.workers[0].next_plan("continue")
        assert time.monotonic() - joined > 1.7, "the last one had its time to settle too"
        for worker in run.members(plan):
            worker.ready(plan)
            worker.enter(plan, 22)
        time.sleep(2.5)
        assert [line["start"] for line in plan_lines(run)] == ["fresh", "continue"]

    def test_the_last_that_the_run_waits_for_is_taken_in_at_once(self, world: Callable[..., World]) -> None:
        settle = {"join_settle_seconds": 60.0, "join_pause_seconds": 0.0, "start_timeout_seconds": 0.3}
        run = world(placement={"workers": 3}, controller={**QUICK, **settle})
        started(run, 1)
        run.join(1)
        time.sleep(1.0)
        assert len(plan_lines(run)) == 1, "another may come"
        run.join(1)
        plan = run.workers[0].next_plan("continue")
        assert set(plan.placement.workers) == {worker.worker_id for worker in run.workers}

    def test_churn_is_taken_in_no_oftener_than_the_pause_allows(self, world: Callable[..., World]) -> None:
        patience = {"join_settle_seconds": 0.0, "join_pause_seconds": 2.0, "start_timeout_seconds": 0.3}
        run = world(placement={"workers": 3}, controller={**QUICK, **patience})
        started(run, 1)
        member = run.workers[0]
        asked = time.monotonic()  # the pause begins when the plan is prepared, after this
        churning = run.join(1)[0]
        plan = member.next_plan("continue")
        assert churning.worker_id in plan.placement.workers
        run.kill(churning)
        assert "is gone" in member.next("withdraw").reason
        run.join(1)
        again = member.next_plan("continue")
        assert time.monotonic() - asked > 2.0
        assert run.workers[2].worker_id in again.placement.workers
