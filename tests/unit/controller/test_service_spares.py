"""placement.spare_workers: pods beside those that the plan uses, requested at once, outside the shape until a worker is lost."""

import asyncio
from pathlib import Path

import pytest

from frostline_contract.plan import GenerationId, Plan
from frostline_controller.serving.servicer import ControlServicer
from frostline_proto.v1 import control_pb2 as pb
from tests.unit.controller.test_service_sizing import ask, cost_job, first_plan, freeze_to, leading


def test_spare_pods_are_asked_for_not_waited_for_and_left_out_of_the_shape(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 2, "spare_workers": 2}) as stage:
            assert stage.replicas == 4
            plan = await first_plan(stage, 0, 1)
            assert stage.ordinals(plan) == [0, 1], "the first plan waits for the two that it names"
            await stage.join(2, 3)
            await stage.until(lambda: not stage.controller.adapting.wish, "the planner's answer")
            assert (stage.facts.state.prepared, stage.facts.current, stage.replicas) == (None, plan, 4)

    asyncio.run(story())


def test_a_freeze_while_a_spare_joins_is_a_reshape_and_no_join(tmp_path: Path) -> None:
    """The plan for the decision answers the spare's request too, and names no worker but the members."""

    async def story() -> None:
        job = cost_job(workers=2, spare_workers=1, initial_pp_degree=1, objective="throughput", reshape_every_freeze=True)
        async with leading(tmp_path, **job, controller={"join_settle_seconds": 600.0, "join_pause_seconds": 600.0}) as stage:
            await first_plan(stage, 0, 1)
            for number, freeze_point in ((1, 3), (2, 4)):
                await freeze_to(stage, freeze_point)
                prepared = await stage.until(lambda: stage.facts.state.prepared, "a plan for the freeze")
                assert stage.ordinals(prepared) == [0, 1]
                await stage.enter(prepared, stage.facts.step + 1)
                await stage.reported("reshape", f"decision {number}")
                if number == 1:
                    await stage.join(2)
                    assert stage.controller.adapting.wish, "joiners wait: there was a plan within the pause"

    asyncio.run(story())


def test_pods_hold_so_many_workers_that_the_spare_ones_fit(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 4, "workers_per_pod": 4, "spare_workers": 1}) as stage:
            assert stage.replicas == 2

    asyncio.run(story())


@pytest.mark.parametrize(("by", "asked"), [("annotation", 2), ("a scale request", 3)])
def test_a_scale_request_counts_the_spare_pods_and_the_annotation_does_not(tmp_path: Path, by: str, asked: int) -> None:
    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 4, "spare_workers": 1}) as stage:
            await first_plan(stage, 0, 1, 2, 3)
            assert stage.replicas == 5
            ask(stage, by, asked)
            await stage.reported("command", f"{by}: 2 workers, answered by 2")
            await stage.until(lambda: stage.replicas == 3, "two workers and one spare")

    asyncio.run(story())


def test_a_changed_job_is_followed_by_the_pods(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 2}) as stage:
            await first_plan(stage, 0, 1)
            section = stage.facts.job.placement.model_copy(update={"spare_workers": 1})
            stage.facts.follow(stage.facts.job.model_copy(update={"placement": section}))
            await stage.reported("join", "3 pods, not 2, for 2 workers and 1 spare")
            await stage.until(lambda: stage.replicas == 3, "the spare's pod")
            section = section.model_copy(update={"spare_workers": 0})
            stage.facts.follow(stage.facts.job.model_copy(update={"placement": section}))
            await stage.reported("leave", "2 pods, not 3, for 2 workers")
            await stage.until(lambda: stage.replicas == 2, "no spare")
            assert stage.facts.current is not None and len(stage.facts.current.placement.workers) == 2

    asyncio.run(story())


def fewer_than(count: int, plan: Plan | None) -> Plan | None:
    """Return the plan if it uses fewer workers, else None: a plan for a newcomer may come first."""
    return plan if plan is not None and len(plan.placement.workers) < count else None


def test_cost_hands_pods_back_but_for_the_spare_ones(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **cost_job(spare_workers=1)) as stage:
            assert stage.replicas == 5
            first = await first_plan(stage, 0, 1, 2, 3)
            assert first.placement.pp_degree == 4
            await stage.join(4)
            await freeze_to(stage, 4)
            small = await stage.until(lambda: fewer_than(4, stage.facts.state.prepared), "a plan for fewer workers")
            used = stage.ordinals(small)
            assert used == list(range(len(used)))
            await stage.enter(small, stage.facts.step + 1)
            await stage.reported("leave", f"{4 - len(used)} of 5 pods handed back: the plan uses {len(used)} workers")
            await stage.until(lambda: stage.replicas == len(used) + 1, "the plan's pods and one spare")

    asyncio.run(story())


def test_who_did_not_answer_a_failure_is_in_no_plan_until_it_does(tmp_path: Path) -> None:
    """Its process lives and its device may not: it is still in a step of the generation that is over."""

    async def story() -> None:
        job = {"placement": {"workers": 3, "initial_pp_degree": 1}, "controller": {"join_settle_seconds": 0.1}}
        async with leading(tmp_path, **job) as stage:
            plan = await first_plan(stage, 0, 1)
            await stage.join(2)
            silent = stage.facts.members.get("uid-2/1")
            assert silent is not None
            silent.generation, silent.phase = GenerationId(incarnation=0, counter=9), "load"
            await stage.until(lambda: not stage.controller.adapting.wish, "the planner's answer")
            assert (stage.facts.state.prepared, stage.facts.current) == (None, plan)
            control = ControlServicer(stage.controller)
            control._take_heartbeat(pb.HeartbeatRequest(worker_id=silent.worker_id, phase="recovery"))
            prepared = await stage.until(lambda: stage.facts.state.prepared, "a plan with it")
            assert stage.ordinals(prepared) == [0, 1, 2]

    asyncio.run(story())
