"""Planned and measured memory, shown side by side in the account of generations, the status and the report; and the planner
counts units' working bytes."""

import asyncio
import dataclasses
from pathlib import Path

import pytest

from frostline_contract.plan import GenerationId, Placement, Plan
from frostline_contract.shape import ParallelShape
from frostline_controller.local_run.status import from_response, status_text
from frostline_controller.members.membership import Worker
from frostline_controller.planner.cost import CostModel, step_cost
from frostline_controller.report import tables
from frostline_controller.report.data import RunData
from frostline_controller.run.controller import Controller
from frostline_controller.run.memory_account import MemoryAccount
from frostline_controller.run.memory_cap import over_cap
from frostline_controller.serving.status import status_of
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import to_message
from tests.unit.controller.planner_cases import inputs, unit
from tests.unit.controller.test_service_sizing import Stage, first_plan, leading

GIGABYTE = 10**9


def plan(counter: int, planned: int) -> Plan:
    placement = Placement(
        degrees={"pp": 2, "dp": 1}, stage_bounds=(0, 1, 2), leaf_bounds=(0, 8), workers=("a", "b"), predicted_peak_bytes=planned
    )
    generation = GenerationId(incarnation=1, counter=counter)
    return Plan(generation=generation, lineage=0, start="fresh", freeze_point=0, placement=placement)


def reported(account: MemoryAccount, current: Plan, name: str, peak: int, communicators: int = 0, of: Plan | None = None,
         tensors: int = 0) -> None:  # fmt: skip
    """A heartbeat's part, by a worker of which nothing else counts here."""
    blank = dict.fromkeys((one.name for one in dataclasses.fields(Worker) if one.default is dataclasses.MISSING
                           and one.default_factory is dataclasses.MISSING), "")  # fmt: skip
    worker = Worker(**(blank | {"worker_id": name}))
    worker.generation = (of or current).generation
    worker.memory = pb.MemoryUse(peak_bytes=peak, communicator_bytes=communicators, communicators=int(communicators > 0),
                                 tensor_bytes=tensors)  # fmt: skip
    account.note(current, worker)


def test_the_fullest_worker_of_each_generation_is_kept() -> None:
    account, first, second = MemoryAccount(), plan(1, 4 * GIGABYTE), plan(2, 3 * GIGABYTE)
    reported(account, first, "a", 2 * GIGABYTE, communicators=GIGABYTE)
    reported(account, first, "b", 2 * GIGABYTE)
    reported(account, first, "a", GIGABYTE)
    reported(account, second, "b", GIGABYTE)
    reported(account, second, "a", 9 * GIGABYTE, of=first)
    rows = account.rows()
    assert [(row["generation"], row["worker"], row["peak_bytes"], row["planned_bytes"]) for row in rows] == [
        ("1.1", "a", 3 * GIGABYTE, 4 * GIGABYTE), ("1.2", "b", GIGABYTE, 3 * GIGABYTE)]  # fmt: skip
    assert rows[0]["communicator_bytes"] == GIGABYTE


def status(device: str) -> pb.StatusResponse:
    response = pb.StatusResponse(name="run", state="running")
    response.placement.predicted_peak_bytes = 4 * GIGABYTE
    for name, peak in (("pod/a", 1), ("pod/b", 3)):
        worker = response.workers.add(worker_id=name, state="member")
        worker.memory.peak_bytes, worker.memory.communicator_bytes = peak * GIGABYTE, GIGABYTE // 2
        worker.device.uuid = device
    response.workers.add(worker_id="pod/c", state="spare")
    return response


@pytest.mark.parametrize(("device", "whose"), [("GPU-1", ""), ("", ", which is a CPU's whole process")])
def test_the_status_puts_the_fullest_member_beside_the_plan(device: str, whose: str) -> None:
    shown = from_response(status(device))
    assert [worker["memory"] and worker["memory"]["peak_bytes"] for worker in shown["workers"]] == [GIGABYTE, 3 * GIGABYTE, None]
    assert shown["planned_memory_bytes"] == 4 * GIGABYTE
    assert f"memory: planned at most 4,000,000,000 bytes a worker, measured 3,500,000,000 at pod/b{whose}" in status_text(shown)


def test_the_report_has_a_line_a_generation() -> None:
    account = MemoryAccount()
    reported(account, plan(1, 4 * GIGABYTE), "a", 3 * GIGABYTE)
    shown = tables.memory(RunData(Path(), {}, *[()] * 7, result={"memory": account.rows()}))
    assert shown is not None and shown.rows[0][:5] == ["1.1", "4,000,000,000", "3,000,000,000", "75 %", "a"]
    assert tables.memory(RunData(Path(), {}, *[()] * 7, result={})) is None, "of a run before memory was told"


def test_who_holds_more_than_the_job_allows_is_told_once_a_generation_and_in_the_status(tmp_path: Path) -> None:
    async def story() -> None:
        stage = Stage(tmp_path, placement={"workers": 2, "worker_memory_bytes": 1000})
        facts, store = stage.facts, stage.store
        for counter in (1, 2):
            current = plan(counter, 900)
            await store.commit(current=current)
            reported(facts.memory, current, "a", 10**9)
            assert over_cap(facts) == "", "a CPU's whole process is not what the limit is about"
            reported(facts.memory, current, "a", 10**9, tensors=1000)
            await stage.controller.memory_cap.advance()
            assert over_cap(facts) == "" and store.events.counts["memory_over_cap"] == counter - 1
            reported(facts.memory, current, "b", 10**9, tensors=1234)
            reported(facts.memory, current, "a", 10**9, tensors=1001)
            await stage.controller.memory_cap.advance()
            await stage.controller.memory_cap.advance()
            await Controller(stage.run, None, tmp_path / "checkpoints").memory_cap.advance()
            assert store.events.counts["memory_over_cap"] == counter
        says = "worker b holds 1,234 bytes, and placement.worker_memory_bytes is 1,000 (planned 900); lower training"
        assert store.events.newest["memory_over_cap"]["reason"].startswith(says)
        response = status_of(facts, store)
        assert response.memory_over_cap.startswith(says) and f"memory: {says}" in status_text(from_response(response))
        assert facts.memory.rows()[0]["tensor_bytes"] == 1234
        stage.run.close()

    asyncio.run(story())


def test_the_unit_that_takes_most_while_it_computes_is_planned_for() -> None:
    """The last of four units takes two megabytes while it computes. One unit computes at a time: the most counts, not the sum."""
    plain = [unit() for _ in range(4)]
    hungry = [
        one.model_copy(update={"working_bytes": size}) for one, size in zip(plain, (1000, 500, 300, 2_000_000), strict=True)
    ]

    def peak(units: list, bounds: tuple[int, ...]) -> float:
        shape = ParallelShape(len(bounds) - 1, 1)
        return step_cost(CostModel(inputs(units)), bounds, (0, 8), shape, "gpipe", [1.0]).peak_bytes

    assert peak(hungry, (0, 4)) - peak(plain, (0, 4)) == 2_000_000
    assert peak(hungry, (0, 3, 4)) - peak(plain, (0, 3, 4)) == 1000, "the first three are the fuller ones"
    assert peak(hungry, (0, 1, 4)) - peak(plain, (0, 1, 4)) == 2_000_000


def test_workers_too_few_for_the_memory_wait_for_the_others_and_all_of_them_too_few_are_a_mistake(tmp_path: Path) -> None:
    """After `start_timeout_seconds` one worker would start alone, which the model does not fit; it fits two, as a pipeline."""

    async def story() -> None:
        sections = {"controller": {"start_timeout_seconds": 0.1}}
        cap = {"workers": 2, "worker_memory_bytes": 100_000}
        async with leading(tmp_path / "fits", placement=cap, **sections) as stage:
            await stage.join(0)
            await stage.until(lambda: "1 of 2 are there, and no placement of 1 workers fits" in stage.facts.message, "it waits")
            assert "placement.worker_memory_bytes is 100,000" in stage.facts.message
            await stage.join(1)
            plan = await stage.until(lambda: stage.facts.current, "both are there")
            assert plan.placement.degrees == {"dp": 1, "pp": 2} and plan.placement.predicted_peak_bytes <= 100_000
        async with leading(tmp_path / "never", placement={**cap, "worker_memory_bytes": 1000}, **sections) as stage:
            await stage.join(0, 1)
            await stage.until(lambda: stage.facts.ended, "nothing more is to come")
            assert "no placement of 2 workers fits" in stage.facts.state.message

    asyncio.run(story())


def test_a_shortage_that_is_reported_again_is_told_once(tmp_path: Path) -> None:
    """A worker repeats the shortage in each report until a plan has answered it."""

    async def story() -> None:
        async with leading(tmp_path, placement={"workers": 1}) as stage:
            current = await first_plan(stage, 0)
            for worker_id in ("uid-0/1", "uid-0/1", "uid-0/2"):
                ran = to_message(current.generation, plan_pb2.GenerationId)
                stage.controller.devices.note_shortage(pb.ReportRecoveryRequest(worker_id=worker_id, ran=ran))
            await stage.controller.devices.advance()
            assert stage.store.events.counts["out_of_memory"] == 2

    asyncio.run(story())
