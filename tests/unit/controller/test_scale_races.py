"""A person's scale request that arrives while the controller itself scales, or cannot write, is answered and not overwritten."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from frostline_contract.annotations import REQUESTED_WORKERS
from frostline_controller.cluster.backend import ClusterState
from frostline_proto.v1 import control_pb2 as pb
from tests.unit.controller.test_service_sizing import Stage, ask, cost_job, first_plan, freeze_to, leading, serving


def overtake(stage: Stage, pods: int) -> list[int]:
    """Let a person write `pods` right before the controller's next scale. Returns a list that gets the controller's number."""
    write, overtaken = stage.backend.scale, []

    def scale(replicas: int, test: int | None = None) -> None:
        if not overtaken:
            overtaken.append(replicas)
            write(pods)
        write(replicas, test)

    stage.backend.scale = scale  # type: ignore[method-assign]
    return overtaken


def answers(stage: Stage) -> list[str]:
    return [event["reason"] for event in stage.store.events.all() if event["kind"] == "command"]


def settled(stage: Stage) -> bool:
    return stage.facts.state.scaling_from < 0 and stage.facts.state.replicas == stage.replicas


@pytest.mark.parametrize("pods", [1, 2, 4])
def test_a_scale_request_overtakes_the_answer_to_another_request(tmp_path: Path, pods: int) -> None:
    """Also one for the very number that the controller is about to write."""

    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 4}) as stage:
            await first_plan(stage, 0, 1, 2, 3)
            if pods == 4:
                ask(stage, "annotation", 3)
                await stage.reported("command", "annotation: 3 workers, answered by 3")
                await stage.until(lambda: stage.replicas == 3 and settled(stage), "three pods")
            before = len(answers(stage))
            overtaken = overtake(stage, pods)
            ask(stage, "annotation", 2)
            await stage.reported("command", f"a scale request: {pods} workers, answered by {pods}")
            await stage.until(lambda: settled(stage) and stage.replicas == pods, "the request's number")
            assert overtaken == [2]
            assert len(answers(stage)) == before + 2, "each request has one answer"
            assert stage.facts.state.requested_workers == pods

    asyncio.run(story())


def test_a_scale_request_is_taken_back_while_it_is_answered(tmp_path: Path) -> None:
    """The number of before is a request too: it replaces another one, whose limit it lifts (chaos, seed 1140169)."""

    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 4}) as stage:
            await first_plan(stage, 0, 1, 2, 3)
            scale = stage.backend.scale
            overtaken = overtake(stage, 4)
            scale(2)
            await stage.reported("command", "a scale request: 4 workers, answered by 4")
            await stage.until(lambda: settled(stage) and stage.replicas == 4, "four pods")
            assert overtaken == [2]
            assert answers(stage) == [f"a scale request: {asked} workers, answered by {asked}" for asked in (2, 4)]
            assert stage.facts.state.requested_workers == 4

    asyncio.run(story())


def test_a_scale_request_overtakes_pods_that_are_handed_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **cost_job()) as stage:
            plan = await first_plan(stage, 0, 1, 2, 3)
            overtaken = overtake(stage, 2)
            await freeze_to(stage, 3)
            prepared = await stage.until(lambda: stage.facts.state.prepared, "a smaller plan")
            assert len(prepared.placement.workers) < len(plan.placement.workers)
            await stage.enter(prepared, 20)
            await stage.reported("command", "a scale request: 2 workers, answered by 2")
            await stage.until(lambda: settled(stage) and stage.replicas <= 2, "no more than two pods")
            assert len(overtaken) == 1
            assert stage.facts.state.requested_workers == 2
            announced = [event["reason"] for event in stage.store.events.all() if "handed back" in event["reason"]]
            assert all(reason.split()[2] != "4" for reason in announced), "nothing was handed back by the refused write"

    asyncio.run(story())


def test_a_scale_request_overtakes_the_first_scale_of_a_run(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, placement={"workers": 4})
        overtaken = overtake(stage, 3)
        async with serving(stage):
            await stage.reported("command", "a scale request: 3 workers, answered by 3")
            await stage.until(lambda: settled(stage) and stage.replicas == 3, "three pods")
            assert overtaken == [4]

    asyncio.run(story())


def test_a_scale_request_overtakes_the_end_of_a_run_and_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path) as stage:
            await first_plan(stage, 0, 1)
            overtaken = overtake(stage, 3)
            stage.controller.ending.note_outcome(pb.RunOutcome(status="completed", steps=3))
            stage.end_workers(0, 1)
            await stage.reported("command", "refused: a scale request for 3 workers, the run is completed")
            await stage.until(lambda: settled(stage) and stage.replicas == 0, "no pods")
            assert overtaken == [0]

    asyncio.run(story())


def test_of_two_scale_requests_that_cannot_be_written_the_newer_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 4}) as stage:
            await first_plan(stage, 0, 1, 2, 3)
            write, refused = stage.backend.patch_annotations, []

            def refuse(changes: dict[str, str | None], test: dict[str, str | None]) -> None:
                refused.append(changes)
                raise OSError("503 Service Unavailable")

            monkeypatch.setattr(stage.backend, "patch_annotations", refuse)
            ask(stage, "a scale request", 3)
            await stage.until(lambda: any(changes.get(REQUESTED_WORKERS) == "3" for changes in refused), "a write that fails")
            ask(stage, "a scale request", 2)
            seen = len(refused)
            await stage.until(lambda: len(refused) > seen + 1, "the newer request has been read")
            monkeypatch.setattr(stage.backend, "patch_annotations", write)
            await stage.reported("command", "a scale request: 2 workers, answered by 2")
            await stage.until(lambda: settled(stage) and stage.replicas == 2, "two pods")
            assert answers(stage) == ["a scale request: 2 workers, answered by 2"]

    asyncio.run(story())


def test_a_scale_whose_answer_was_lost_is_no_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster has done it, and no watch has said so yet: the number that refuses the second try is the controller's own."""

    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 4}) as stage:
            await first_plan(stage, 0, 1, 2, 3)
            write, read = stage.backend.scale, stage.backend.read
            tries: list[int] = []
            outdated: list[int] = []

            def lose_the_answer(replicas: int, test: int) -> None:
                tries.append(replicas)
                if len(tries) == 1:
                    write(replicas, test)
                    outdated.append(test)
                    raise OSError("the connection was reset")
                outdated.clear()  # a refusal is read at once
                write(replicas, test)

            def read_late() -> ClusterState:
                return replace(read(), spec_replicas=outdated[0]) if outdated else read()

            monkeypatch.setattr(stage.backend, "scale", lose_the_answer)
            monkeypatch.setattr(stage.backend, "read", read_late)
            ask(stage, "annotation", 2)
            await stage.until(lambda: len(tries) > 1 and settled(stage) and stage.replicas == 2, "two pods")
            await stage.until(lambda: not stage.controller.adapting.wish, "the planner's answer")
            assert tries == [2, 2]
            assert not [answer for answer in answers(stage) if "a scale request" in answer]
            assert stage.facts.state.requested_workers == 2

    asyncio.run(story())
