"""How many pods a run holds: objective cost, scale requests and the annotation, on the local backend."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from frostline_contract.annotations import REQUESTED_WORKERS
from frostline_contract.job import parse_job
from frostline_contract.plan import Plan
from frostline_contract.statistics import IntervalStatistics, UnitProfile, WorkerProfile
from frostline_contract.worker_state import WorkerState
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.decisions.rails import RAIL_NAMES
from frostline_controller.members.membership import Worker
from frostline_controller.planner.kept_profile import KeptProfile
from frostline_controller.run.controller import Controller
from frostline_controller.run.durable import DurableStore, RunIdentity
from frostline_controller.run.reconciler import Reconciler
from frostline_controller.run.run import Run
from frostline_proto.v1 import control_pb2 as pb
from frostline_rpc.convert import to_record
from tests.integration.scripted_worker import NUM_UNITS, job_values, statistics

UNIT = UnitProfile(
    forward_seconds=0.02, backward_seconds=0.04, parameter_bytes=4000, optimizer_bytes=8000, activation_bytes=1000,
    output_bytes=1000,
)  # fmt: skip


class Stage:
    """A leading controller in this process; workers are facts that the test states. Every worker has a core of its own."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        job = parse_job(yaml.safe_load(yaml.safe_dump(job_values(**sections))))
        self.backend = LocalBackend(folder / "cluster")
        store = DurableStore(self.backend)
        self.run = Run(job, folder, self.backend, store, *store.take_over(), parallel_slots=None)
        self.facts, self.store = self.run.facts, self.run.store
        self.facts.adopt_identity(
            RunIdentity(
                probe_digest="p", probe_detail="", num_units=NUM_UNITS, steps_per_epoch=16, train_samples=512, dataset_digest="d"
            )
        )
        self.controller = Controller(self.run, None, folder / "checkpoints")
        self.reconciler = Reconciler(self.controller)

    async def join(self, *ordinals: int) -> None:
        for ordinal in ordinals:
            now = self.facts.clock()
            worker = Worker(
                worker_id=f"uid-{ordinal}/1", pod_name=f"trainer-{ordinal}", failure_domain=f"node-{ordinal}", process_id=1,
                store_host="127.0.0.1", store_port=1, registered_at=now, last_received=now, watching=True,
                profile=KeptProfile.of(WorkerProfile(micro_batch_size=4, units=(UNIT,) * NUM_UNITS)),
            )  # fmt: skip
            self.facts.members.add(worker)
            await self.controller.note_joined(worker)

    async def enter(self, plan: Plan, step: int) -> None:
        """All members run the plan, at a step; of a prepared plan the vote has switched."""
        for worker_id in plan.participants:
            if self.facts.state.prepared == plan:
                request = pb.ReadyRequest(worker_id=worker_id, ready=True, entered=worker_id in plan.placement.workers, step=step)
                self.controller.reshaping.note_ready(worker_id, request)
            else:
                self.facts.entered[worker_id] = (step, 0.1)
        for worker_id in plan.placement.workers:
            worker = self.facts.members.get(worker_id)
            assert worker is not None
            worker.generation, worker.step = plan.generation, step
        await self.until(lambda: self.facts.current == plan, "the plan runs")

    async def until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + 60.0
        while time.monotonic() < deadline:
            for worker in self.facts.members:
                worker.last_received = self.facts.clock()
            if value := condition():
                return value
            self.facts.wake.set()
            await asyncio.sleep(0.02)
        raise AssertionError(f"not within 60 s: {what}; {self.facts.message}; {self.store.events.all()}")

    async def reported(self, kind: str, words: str) -> str:
        def found() -> str:
            return next((e["reason"] for e in self.store.events.all() if e["kind"] == kind and words in e["reason"]), "")

        return await self.until(found, f"an event {kind!r} with {words!r}")

    def end_workers(self, *ordinals: int) -> None:
        for ordinal in ordinals:
            self.controller.departures.note(f"uid-{ordinal}/1", "ended", WorkerState.GONE)
            self.facts.members.remove(f"uid-{ordinal}/1", "ended")

    def ordinals(self, plan: Plan) -> list[int]:
        return sorted(int(worker_id.split("/")[0].removeprefix("uid-")) for worker_id in plan.placement.workers)

    @property
    def replicas(self) -> int:
        return self.backend.read().spec_replicas


@asynccontextmanager
async def serving(stage: Stage) -> AsyncIterator[Stage]:
    await stage.controller.start()
    rounds = asyncio.create_task(stage.reconciler.serve())
    try:
        yield stage
    finally:
        stage.reconciler.stop()
        await rounds
        stage.run.close()


@asynccontextmanager
async def leading(folder: Path, **sections: Any) -> AsyncIterator[Stage]:
    async with serving(Stage(folder, **sections)) as stage:
        yield stage


def cost_job(**placement: Any) -> dict[str, Any]:
    return {
        "placement": {"workers": 4, "min_workers": 1, "objective": "cost", "initial_pp_degree": 4, **placement},
        "training": {"steps": 6400, "batch_size": 32, "micro_batch_size": 4, "reduction_leaves": 8},
        "freeze": {"interval_steps": 8, "policy": {"name": "manual"}, "rails": {"off": list(RAIL_NAMES)}},
    }


async def first_plan(stage: Stage, *ordinals: int) -> Plan:
    await stage.join(*ordinals)
    plan = await stage.until(lambda: stage.facts.current, "the first plan")
    await stage.enter(plan, 1)
    return plan


async def freeze_to(stage: Stage, freeze_point: int) -> None:
    """Take an operator's requested freeze point to the next decision, and reach the decision's step."""
    assert stage.facts.calendar is not None
    taken = len(stage.facts.state.decisions)
    asked = asyncio.create_task(stage.controller.commands.accept(pb.CommandRequest(kind="freeze", freeze_point=freeze_point)))
    await stage.until(lambda: stage.facts.state.forced_freeze_point == freeze_point, "the command is taken")
    await stage.until(asked.done, "its caller is answered")
    for worker in stage.facts.members:
        worker.step = stage.facts.calendar.effective_step(taken + 1) if worker.generation is not None else 0
    await stage.store.statistics.take([to_record(statistics(taken + 1, freeze_point=0), IntervalStatistics)])
    await stage.until(lambda: len(stage.facts.state.decisions) > taken, "the decision")
    assert stage.facts.state.decisions[-1].freeze_point == freeze_point, stage.facts.state.decisions[-1].reason


def test_cost_hands_unused_pods_back_and_takes_them_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, **cost_job()) as stage:
            assert stage.replicas == 4
            first = await first_plan(stage, 0, 1, 2, 3)
            assert (first.placement.pp_degree, first.placement.dp_degree) == (4, 1)
            await freeze_to(stage, 4)
            small = await stage.until(lambda: stage.facts.state.prepared, "a plan for fewer workers")
            used = stage.ordinals(small)
            assert used == list(range(len(used))) and len(used) < 4, "the lowest ordinals stay"
            assert stage.replicas == 4, "nobody goes before the switch"
            await stage.enter(small, stage.facts.step + 1)
            await stage.reported("leave", f"{4 - len(used)} of 4 pods handed back: the plan uses {len(used)} workers")
            await stage.until(lambda: stage.replicas == len(used), "the scale")
            written = stage.facts.state.incarnation, stage.facts.state.replicas
            for ordinal in range(len(used), 4):
                stage.controller.departures.note(f"uid-{ordinal}/1", "its pod ended", WorkerState.GONE)
            await stage.until(lambda: len(stage.facts.members.available()) == len(used), "the others are gone")
            await stage.until(lambda: not stage.controller.adapting.wish, "the planner's answer")
            assert (stage.facts.state.incarnation, stage.facts.state.replicas) == written
            assert stage.facts.state.prepared is None, "a run that handed pods back is judged as before"
            await freeze_to(stage, 0)
            await stage.reported("join", "pods taken again: the planner wants 4 workers")
            await stage.until(lambda: stage.replicas == 4, "the scale")
            if stage.facts.state.prepared is not None:
                await stage.enter(stage.facts.state.prepared, stage.facts.step + 1)
            await stage.join(*range(len(used), 4))
            whole = await stage.until(lambda: stage.facts.state.prepared, "a plan for all")
            assert stage.ordinals(whole) == [0, 1, 2, 3]
            await stage.enter(whole, stage.facts.step + 1)
            await stage.until(lambda: not stage.controller.adapting.wish, "the planner's answer")
            assert stage.replicas == 4
            counts = [event["kind"] for event in stage.store.events.all()]
            assert counts.count("leave") == 1, "one event and one write for a plan"

    asyncio.run(story())


def test_pods_that_are_still_starting_are_not_handed_back(tmp_path: Path) -> None:
    async def story() -> None:
        sections = cost_job(initial_pp_degree=None, pp_degree=1, dp_degree=1, workers=3)
        sections["controller"] = {"start_timeout_seconds": 0.3, "dead_after_seconds": 2.0}
        async with leading(tmp_path, **sections) as stage:
            plan = await first_plan(stage, 0, 1)
            assert stage.ordinals(plan) == [0]
            assert stage.replicas == 3, "the third pod is still starting"
            await stage.reported("leave", "2 of 3 pods handed back: the plan uses 1 workers")
            assert stage.facts.clock() - stage.facts.started > 0.3
            await stage.until(lambda: stage.replicas == 1, "the scale")

    asyncio.run(story())


def test_a_write_that_the_cluster_refused_is_written_again_and_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 4}) as stage:
            await first_plan(stage, 0, 1, 2, 3)
            tries: list[int] = []
            write = stage.backend.scale

            def refuse_once(replicas: int, test: int) -> None:
                tries.append(replicas)
                if len(tries) == 1:
                    raise OSError("429 Too Many Requests")
                write(replicas, test)

            monkeypatch.setattr(stage.backend, "scale", refuse_once)
            ask(stage, "annotation", 2)
            await stage.until(lambda: stage.replicas == 2 and stage.facts.state.scaling_from < 0, "the scale")
            await stage.until(lambda: not stage.controller.adapting.wish, "the planner's answer")
            assert tries == [2, 2]
            assert (stage.facts.state.requested_workers, stage.replicas) == (2, 2)
            assert not [event for event in stage.store.events.all() if "a scale request" in event["reason"]]

    asyncio.run(story())


@pytest.mark.parametrize("by", ["annotation", "a scale request"])
def test_a_request_is_a_limit_answered_once(tmp_path: Path, by: str) -> None:
    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 4, "min_workers": 2}) as stage:
            await first_plan(stage, 0, 1, 2, 3)
            ask(stage, by, 1)
            await stage.reported("command", f"{by}: 1 workers, answered by 2")
            await stage.until(lambda: stage.replicas == 2, "clamped to min_workers")
            assert stage.backend.read().annotations[REQUESTED_WORKERS] == "1"
            ask(stage, by, 9)
            await stage.reported("command", f"{by}: 9 workers, answered by 4")
            await stage.until(lambda: stage.replicas == 4, "clamped to the job's workers")
            for _ in range(5):
                await asyncio.sleep(0.1)
                stage.facts.wake.set()
            assert [event["kind"] for event in stage.store.events.all()].count("command") == 2

    asyncio.run(story())


def test_a_removed_annotation_lifts_the_limit_and_a_wrong_one_is_put_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 4}) as stage:
            await first_plan(stage, 0, 1, 2, 3)
            ask(stage, "annotation", 3)
            await stage.until(lambda: stage.replicas == 3, "three pods")
            for wrong in ("many", "99999999999", "65537", "9" * 5000, "-1"):
                stage.backend.patch_annotations({REQUESTED_WORKERS: wrong}, {})
                await stage.reported(
                    "command", f"refused: frostline.io/requested-workers is '{wrong[:40]}'; it must be a number of"
                )
                assert stage.backend.read().annotations[REQUESTED_WORKERS] == "3"
            stage.backend.patch_annotations({REQUESTED_WORKERS: None}, {})
            await stage.reported("command", "annotation: no limit on the workers, answered by 4")
            await stage.until(lambda: stage.replicas == 4, "four pods")

    asyncio.run(story())


@pytest.mark.parametrize("by", ["annotation", "a scale request"])
def test_zero_suspends_and_more_than_zero_resumes(tmp_path: Path, by: str) -> None:
    async def story() -> None:
        async with leading(tmp_path) as stage:
            await first_plan(stage, 0, 1)
            ask(stage, by, 0)
            await stage.reported("command", f"suspend by {by}")
            assert stage.facts.state.state == "draining"
            stage.controller.ending.note_outcome(pb.RunOutcome(status="suspended", steps=3))
            stage.end_workers(0, 1)
            await stage.until(lambda: stage.facts.state.state == "suspended" and stage.replicas == 0, "suspended")
            await asyncio.sleep(0.2)
            assert stage.facts.state.state == "suspended", "its own scale is no request"
            ask(stage, by, 1)
            await stage.reported("command", f"resume by {by}")
            await stage.until(lambda: stage.replicas == 1, "one pod is asked for again")
            assert stage.facts.state.state == "waiting"

    asyncio.run(story())


def test_a_scale_that_a_crash_cut_short_is_finished_and_no_request(tmp_path: Path) -> None:
    async def story() -> None:
        async with leading(tmp_path / "run", placement={"workers": 4}) as stage:
            assert stage.replicas == 4
        store = DurableStore(stage.backend)
        before, _ = store.take_over()
        store.write(before, before.model_copy(update={"replicas": 2, "scaling_from": 4}))  # and then the power went
        async with leading(tmp_path / "run", placement={"workers": 4}) as stage:
            assert stage.replicas == 2
            await asyncio.sleep(0.1)
            assert (stage.facts.state.requested_workers, stage.facts.state.scaling_from) == (-1, -1)

    asyncio.run(story())


def ask(stage: Stage, by: str, workers: int) -> None:
    if by == "annotation":
        stage.backend.patch_annotations({REQUESTED_WORKERS: str(workers)}, {})
    else:
        stage.backend.scale(workers)
