"""Workers' reports of their GPUs, over real sockets: they decide the plan's backend, and the status shows them."""

from collections.abc import Callable

import grpc
import pytest

from frostline_contract.device import DeviceFacts
from frostline_contract.exit_codes import DEVICE
from frostline_contract.plan import Plan
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import to_message
from tests.integration.recovery_world import QUICK, UNITS, answer_to
from tests.integration.scripted_worker import ScriptedWorker, at, wait_for, wire
from tests.integration.scripted_world import World, world

__all__ = ["world"]


def gpu_worker(run: World, uuid: str, uid: str | None = None) -> ScriptedWorker:
    """Return a worker that computes on the GPU `uuid` and has joined."""
    worker = ScriptedWorker(run.folder, len(run.workers), uid=uid)
    worker.device = DeviceFacts(host="machine", name="A100", uuid=uuid, multiprocessors=108, nccl="2.29.7")
    run.workers.append(worker.join())
    return worker


def test_a_plan_of_workers_with_gpus_of_their_own_says_nccl(world: Callable[..., World]) -> None:
    run = world()
    first = [gpu_worker(run, uuid) for uuid in ("GPU-a", "GPU-b")]
    plan = first[0].next_plan("fresh")
    assert plan.backend == "nccl"
    for worker in first:
        worker.enter(plan, 0)
    status = wait_for(lambda: (s := run.operator.status()).state == "running" and s, "running")
    assert status.backend == "nccl"
    assert sorted((one.device.name, one.device.uuid, one.device.multiprocessors) for one in status.workers) == [
        ("A100", "GPU-a", 108),
        ("A100", "GPU-b", 108),
    ]


def test_workers_that_share_a_gpu_get_gloo(world: Callable[..., World]) -> None:
    run = world()
    assert {gpu_worker(run, "GPU-a").worker_id, gpu_worker(run, "GPU-a").worker_id} == set(
        (plan := run.workers[0].next_plan("fresh")).placement.workers
    )
    assert plan.backend == "gloo"


def test_the_job_forces_a_backend(world: Callable[..., World]) -> None:
    run = world(placement={"backend": "gloo"})
    gpu_worker(run, "GPU-a")
    assert gpu_worker(run, "GPU-b").next_plan("fresh").backend == "gloo"


def reaped(run: World, worker: ScriptedWorker, uuid: str, code: int = DEVICE) -> None:
    """Report a worker's end as the parent of its process does; twice, as after a lost answer."""
    worker.silence()
    other = next(one for one in run.workers if not one.silent)
    for _ in range(2):
        request = pb.LeaveRequest(
            worker_id=worker.worker_id, reason="it ended", ended=True, exit_code=code, node=worker.node, device_uuid=uuid
        )
        other.stub.Leave(request, timeout=60)


def test_a_gpu_that_failed_twice_is_not_used_any_more(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2, "min_workers": 1}, controller=QUICK)
    kept, first = gpu_worker(run, "GPU-a"), gpu_worker(run, "GPU-b")
    plan = kept.next_plan("fresh")
    for worker in run.workers:
        worker.enter(plan, 0)
    reaped(run, first, "GPU-b", code=70)  # an error of the worker's program does not count against the device
    again = ScriptedWorker(run.folder, first.ordinal, uid=first.worker_id.split("/")[0])
    again.device = first.device
    run.workers.append(again.join())
    reaped(run, again, "GPU-b")
    third = ScriptedWorker(run.folder, first.ordinal, uid=first.worker_id.split("/")[0])
    third.device = first.device
    third.register()  # a single error is not enough for a quarantine
    assert run.operator.status().quarantined == []
    run.workers.append(third.join())
    reaped(run, third, "GPU-b")
    (reported,) = wait_for(lambda: run.events("quarantine"), "the event")
    assert reported["reason"] == f"GPU GPU-b of node {first.node} failed 2 times and is not used any more in this run"
    (one,) = run.operator.status().quarantined
    assert (one.node, one.uuid, one.failures) == (first.node, "GPU-b", 2)
    refused = ScriptedWorker(run.folder, 9, node=first.node)
    refused.device = first.device
    with pytest.raises(grpc.RpcError, match=r"device\.uuid is GPU-b: this GPU of node node-1 failed 2 times in this run"):
        refused.register()
    elsewhere = ScriptedWorker(run.folder, 8, node="another")
    elsewhere.device = first.device
    elsewhere.register()  # a GPU with the same UUID in another node is another GPU
    kept.silence()
    run.restart_controller()
    refused.connect()
    with pytest.raises(grpc.RpcError, match="failed 2 times in this run"):
        refused.register()
    assert len(run.events("quarantine")) == 1
    for worker in (refused, elsewhere):
        worker.channel.close()


def short_of_memory(run: World, plan: Plan, victim: ScriptedWorker, step: int) -> None:
    """A member's device has no memory left at `step`; all members report."""
    for worker in run.members(plan):
        state = to_message(at(plan, step), plan_pb2.StateTag)
        shortage = pb.MemoryShortage(peak_bytes=7_000_000, limit_bytes=8_000_000) if worker is victim else None
        worker.stub.ReportRecovery(
            pb.ReportRecoveryRequest(
                worker_id=worker.worker_id, incarnation=1, generation=wire(plan), ran=wire(plan), memory_shortage=shortage,
                pieces=[pb.PieceReport(piece=unit, intact=True, state=state) for unit in UNITS], fenced=worker is not victim,
                error="OutOfMemoryError: CUDA out of memory" if worker is victim else "",
            ),
            timeout=60,
        )  # fmt: skip


def test_a_plan_that_ran_out_of_memory_is_not_made_again(world: Callable[..., World]) -> None:
    run = world(placement={"workers": 2, "min_workers": 2}, controller=QUICK)
    plan = run.start()
    run.at(20)
    planned = plan.placement.predicted_peak_bytes
    assert planned > 0 and plan.placement.degrees["dp"] == 2
    short_of_memory(run, plan, run.workers[1], 20)
    answer = answer_to(plan, run.workers[0])
    assert answer.start == "survivors" and answer.placement.predicted_peak_bytes < planned
    (reported,) = wait_for(lambda: run.events("out_of_memory"), "the event")
    assert reported["reason"] == (
        f"worker trainer-1 ran out of memory: planned {planned:,} bytes for the fullest worker, measured 7,000,000 of the "
        "device's 8,000,000; no plan that needs as much is made again"
    )
    assert reported["detail"]["planned_bytes"] == planned
    for worker in run.workers:
        worker.enter(answer, 20)
    short_of_memory(run, answer, run.workers[0], 20)
    status = wait_for(lambda: (s := run.operator.status()).state == "failed" and s, "the end")
    assert "out of memory, and no other plan needs less" in status.message and "lower training.micro_batch_size" in status.message


def test_a_pinned_shape_that_ran_out_of_memory_gives_way_to_one_that_fits(world: Callable[..., World]) -> None:
    """A shape that a person has pinned does not make the run end."""
    run = world(placement={"workers": 2, "min_workers": 2}, controller=QUICK)
    plan = run.start()
    run.at(20)
    run.operator.command("reshape", degrees=plan.placement.degrees)
    short_of_memory(run, plan, run.workers[1], 20)
    answer = answer_to(plan, run.workers[0])
    assert answer.start == "survivors" and answer.placement.degrees != plan.placement.degrees
    assert "not the pinned pp 1 x dp 2: no placement of 2 workers fits their memory" in answer.reason
