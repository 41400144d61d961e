"""Simulated workers for the controller benchmark, many in one process: `python -m tests.benchmarks.clients RUN_DIR FIRST COUNT`.

Each has a channel of its own, registers, watches its stream and sends a heartbeat a second, as a worker does. Commands come on
standard input, one JSON line each, and each is answered by one JSON line:
the command's "do" names a method of Clients, its other fields are that method's arguments. Moments are CLOCK_MONOTONIC seconds,
which all processes of a machine share.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import grpc

from frostline_contract.job import job_digest, load_job
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import control_pb2_grpc, plan_pb2
from frostline_rpc.auth import WORKER, Tokens
from frostline_rpc.channel import OPTIONS

NUM_UNITS = 14
INTERVAL_STEPS = 8
WAIT_SECONDS = 120.0


class Simulated:
    """One worker's side of the protocol."""

    def __init__(self, address: str, token: str, digest: str, ordinal: int) -> None:
        self.worker_id, self.ordinal, self._digest = f"uid-{ordinal}/bench", ordinal, digest
        self._metadata = [("authorization", f"Bearer {token}")]
        self._channel = grpc.aio.insecure_channel(address, OPTIONS)
        self._stub = control_pb2_grpc.ControlStub(self._channel)
        self.plan: plan_pb2.Plan | None = None
        self.generation: plan_pb2.GenerationId | None = None
        self.decided: dict[int, float] = {}
        self.heartbeat_seconds: list[float] = []
        self.step = 0

    async def join(self) -> None:
        unit = plan_pb2.UnitProfile(
            forward_seconds=0.002, backward_seconds=0.004, parameter_bytes=4000, optimizer_bytes=8000, activation_bytes=1000,
            output_bytes=1000,
        )  # fmt: skip
        request = pb.RegisterRequest(
            worker_id=self.worker_id, pod_name=f"trainer-{self.ordinal}", failure_domain=f"node-{self.ordinal // 8}",
            process_id=1, store_host="127.0.0.1", store_port=10_000, probe_digest="probe", probe_detail="simulated",
            job_digest=self._digest, num_units=NUM_UNITS, steps_per_epoch=16, train_samples=65_536, dataset_digest="data",
            boundary_bytes_per_sample=100,
            profile=plan_pb2.WorkerProfile(micro_batch_size=4, units=[unit] * NUM_UNITS, device="cpu"),
        )  # fmt: skip
        await self._stub.Register(request, timeout=WAIT_SECONDS, metadata=self._metadata)

    async def watch(self) -> None:
        """Note when each message came, until the channel closes."""
        async for message in self._stub.WatchPlan(pb.WatchPlanRequest(worker_id=self.worker_id), metadata=self._metadata):
            kind = message.WhichOneof("message")
            if kind == "decision":
                self.decided.setdefault(message.decision.number, time.monotonic())
            elif kind == "plan" and message.plan.start == "fresh":
                self.plan = message.plan

    async def beat(self) -> None:
        """A heartbeat each second, each worker at its own moment of it."""
        await asyncio.sleep(self.ordinal % 100 / 100)
        while True:
            started = time.monotonic()
            request = pb.HeartbeatRequest(worker_id=self.worker_id, generation=self.generation, step=self.step, phase="schedule",
                                          step_parts={"schedule": 0.1, "exchange": 0.01, "vote": 0.001})  # fmt: skip
            await self._stub.Heartbeat(request, timeout=WAIT_SECONDS, metadata=self._metadata)
            ended = time.monotonic()
            self.heartbeat_seconds.append(ended - started)
            await asyncio.sleep(max(0.0, 1.0 - (ended - started)))

    async def enter(self) -> None:
        assert self.plan is not None
        self.generation = self.plan.generation
        request = pb.ReadyRequest(worker_id=self.worker_id, generation=self.generation, ready=True, entered=True, seconds=0.1)
        await self._stub.Ready(request, timeout=WAIT_SECONDS, metadata=self._metadata)

    async def report(self, number: int) -> float:
        """Send an interval's statistics. Returns when that began."""
        norms = [1.0 + unit for unit in range(NUM_UNITS)]
        statistics = plan_pb2.IntervalStatistics(
            number=number, first_step=(number - 1) * INTERVAL_STEPS + 1, last_step=number * INTERVAL_STEPS,
            unit_gradient_norms=norms, unit_parameters=[1000] * NUM_UNITS, unit_forward_flops=[1000] * NUM_UNITS,
            learning_rate=0.1, learning_rate_peak=0.1, loss_mean=1.0, accepted_steps=INTERVAL_STEPS,
        )  # fmt: skip
        request = pb.ReportStatisticsRequest(worker_id=self.worker_id, generation=self.generation, statistics=[statistics])
        started = time.monotonic()
        await self._stub.ReportStatistics(request, timeout=WAIT_SECONDS, metadata=self._metadata)
        return started


class Clients:
    """COUNT workers and the commands that steer them."""

    def __init__(self, workers: list[Simulated]) -> None:
        self.workers = workers
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> dict[str, Any]:
        for worker in self.workers:
            await worker.join()
            self._tasks += [asyncio.create_task(worker.watch()), asyncio.create_task(worker.beat())]
        return {"joined": len(self.workers)}

    async def enter(self) -> dict[str, Any]:
        """Wait for the first plan, and run it from now on; those that it leaves out stay spares."""
        await self._until(lambda: any(worker.plan is not None for worker in self.workers))
        plan = next(worker.plan for worker in self.workers if worker.plan is not None)
        members = set(plan.placement.workers)
        inside = [worker for worker in self.workers if worker.worker_id in members]
        await self._until(lambda: all(worker.plan is not None for worker in inside))
        for worker in inside:
            await worker.enter()
        return {"members": len(members), "pp_degree": plan.placement.pp_degree, "dp_degree": plan.placement.dp_degree,
                "first": plan.placement.workers[0]}  # fmt: skip

    async def at(self, step: int) -> dict[str, Any]:
        for worker in self.workers:
            worker.step = step if worker.generation is not None else 0
        return {}

    async def report(self, worker_id: str, number: int) -> dict[str, Any]:
        reporter = next(worker for worker in self.workers if worker.worker_id == worker_id)
        return {"started": await reporter.report(number)}

    async def decisions(self, number: int) -> dict[str, Any]:
        await self._until(lambda: all(number in worker.decided for worker in self.workers))
        return {"received": [worker.decided[number] for worker in self.workers]}

    async def heartbeats(self) -> dict[str, Any]:
        """Latencies since the last call."""
        seconds = [value for worker in self.workers for value in worker.heartbeat_seconds]
        for worker in self.workers:
            worker.heartbeat_seconds.clear()
        return {"seconds": seconds}

    async def _until(self, true: Any) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not true():
            for task in self._tasks:
                if task.done():
                    task.result()
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {WAIT_SECONDS:g} s for {len(self.workers)} workers")
            await asyncio.sleep(0.01)


async def serve(run_dir: Path, first: int, count: int) -> None:
    """Answer commands until standard input ends."""
    address = (run_dir / "controller.address").read_text().strip()
    token = Tokens.read(run_dir / "tokens.json").by_role[WORKER]
    digest = job_digest(load_job(run_dir / "job.yaml"))
    clients = Clients([Simulated(address, token, digest, ordinal) for ordinal in range(first, first + count)])
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        answer = await getattr(clients, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
