"""What workers tell of their GPUs, over real sockets: the plan's backend follows from it, and the status shows it."""

from collections.abc import Callable

from frostline_contract.device import DeviceFacts
from tests.integration.scripted_worker import ScriptedWorker, wait_for
from tests.integration.scripted_world import World, world

__all__ = ["world"]


def gpu_worker(run: World, uuid: str, uid: str | None = None) -> ScriptedWorker:
    """A worker that computes on the GPU `uuid`; it has joined."""
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
