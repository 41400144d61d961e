"""Simulated workers for the controller benchmark, many in one process: `python -m tests.benchmarks.clients RUN_DIR FIRST COUNT`.

Each has a connection of its own, registers, watches its stream and sends a heartbeat a second, with the fields that a worker
sends. Commands come on standard input, one JSON line each, and each is answered by one JSON line. The command's "do" names a
method of Clients; its other fields are that method's arguments. Moments are CLOCK_MONOTONIC seconds, which all processes of a
machine share.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frostline_contract.job import job_digest, load_job
from frostline_contract.phases import IN_STEP, Phase
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import plan_pb2
from frostline_rpc.auth import WORKER, Tokens
from tests.benchmarks.wire import Connection, open_connection

NUM_UNITS = 200
INTERVAL_STEPS = 8
WAIT_SECONDS = 120.0
CALL_SECONDS, ANSWER_SECONDS, ASK_SECONDS = 60.0, 5.0, 2.0
JOIN_AT_ONCE = 25
"""Workers of each process that join at once: pods of one scale-up come at about the same time."""
TIMED_PHASES = tuple(phase for phase in Phase if phase in IN_STEP and phase is not Phase.UPDATE)
LINK = plan_pb2.LinkProfile(
    latency_seconds=1e-4, bandwidth_bytes_per_second=1e9, reduce_latency_seconds=3e-4, reduce_bandwidth_bytes_per_second=5e8
)
CACHE = plan_pb2.CacheProfile(fetch_seconds_per_sample=1e-4, fill_seconds_per_sample=1e-4, hit_fraction=0.9)


class Simulated:
    """The protocol's worker side, for one worker."""

    _connection: Connection

    def __init__(self, address: str, token: str, digest: str, ordinal: int) -> None:
        self.worker_id, self.ordinal, self._digest = f"uid-{ordinal}/bench", ordinal, digest
        self._address, self._token = address, token
        self._noise = random.Random(ordinal)
        self.plans: dict[int, plan_pb2.Plan] = {}
        self.ready: set[int] = set()
        self.generation: plan_pb2.GenerationId | None = None
        self.decided: dict[int, float] = {}
        self.heartbeat_seconds: list[float] = []
        self.step = 0
        self._asked_at: float | None = None
        self._answered_at = -ASK_SECONDS

    async def call(self, method: str, request: Any) -> bytes:
        return await self._connection.unary(method, request.SerializeToString(), CALL_SECONDS)

    async def join(self) -> None:
        """Connect and register, with measurements of its own: no two workers measure the same."""
        self._connection = await open_connection(self._address, self._token)
        units = [
            plan_pb2.UnitProfile(
                forward_seconds=self._noise.uniform(0.0018, 0.0022), backward_seconds=self._noise.uniform(0.0036, 0.0044),
                parameter_bytes=4000, optimizer_bytes=8000, activation_bytes=1000, output_bytes=1000,
            )
            for _ in range(NUM_UNITS)
        ]  # fmt: skip
        request = pb.RegisterRequest(
            worker_id=self.worker_id, pod_name=f"trainer-{self.ordinal}", failure_domain=f"node-{self.ordinal // 8}",
            process_id=1, store_host="127.0.0.1", store_port=10_000, probe_digest="probe", probe_detail="simulated",
            job_digest=self._digest, num_units=NUM_UNITS, steps_per_epoch=16, train_samples=65_536, dataset_digest="data",
            boundary_bytes_per_sample=100, profile=plan_pb2.WorkerProfile(micro_batch_size=4, units=units, device="cpu"),
        )  # fmt: skip
        await self.call("Register", request)

    def watch(self) -> "asyncio.Future[None]":
        """Record when each message comes, until the returned future is done."""
        request = pb.WatchPlanRequest(worker_id=self.worker_id).SerializeToString()
        return self._connection.stream("WatchPlan", request, self._receive)

    def _receive(self, data: bytes) -> None:
        message = pb.WatchPlanResponse.FromString(data)
        kind = message.WhichOneof("message")
        if kind == "decision":
            self.decided.setdefault(message.decision.number, time.monotonic())
        elif kind == "plan":
            self.plans[message.plan.generation.counter] = message.plan
        elif kind == "ready":
            self.ready.add(message.ready.generation.counter)

    async def beat(self) -> None:
        """Send a heartbeat each second, each worker at its own moment of the second, over one stream after the other. As a
        real worker (`frostline_trainer.control.heartbeats`), request an answer ASK_SECONDS after the last one."""
        await asyncio.sleep(self.ordinal % 100 / 100)
        call = None
        while True:
            now = time.monotonic()
            quiet = self._asked_at is not None or now - self._answered_at < ASK_SECONDS
            if not quiet:
                self._asked_at = now
            if call is None or call.done.done():
                call = self._connection.conversation("Heartbeats", self._heartbeat(quiet), self._receive_answer)
            else:
                self._connection.more(call, self._heartbeat(quiet))
            await asyncio.sleep(1.0)
            if self._asked_at is not None and time.monotonic() - self._asked_at > ANSWER_SECONDS:
                raise TimeoutError(f"a heartbeat of {self.worker_id} was not answered within {ANSWER_SECONDS:g} s")

    def _receive_answer(self, data: bytes) -> None:
        assert pb.HeartbeatsResponse.FromString(data).heartbeat.known, f"{self.worker_id} was given up"
        assert self._asked_at is not None, "an answer that was not asked for"
        self._answered_at = time.monotonic()
        self.heartbeat_seconds.append(self._answered_at - self._asked_at)
        self._asked_at = None

    def _heartbeat(self, quiet: bool) -> bytes:
        inside = self.generation is not None
        heartbeat = pb.HeartbeatRequest(
            worker_id=self.worker_id, generation=self.generation, step=self.step, phase="schedule" if inside else "start",
            phase_seconds=0.1, waiting_seconds=0.05, resident_bytes=2**30,
            step_parts={"schedule": 0.1, "exchange": 0.01, "vote": 0.001} if inside else {},
            phase_p99_seconds=dict.fromkeys(TIMED_PHASES, 0.1) if inside else {},
            busy_seconds=self._noise.uniform(0.09, 0.11) if inside else 0.0, link=LINK if inside else None,
            cache=CACHE if inside else None,
        )  # fmt: skip
        return pb.HeartbeatsRequest(heartbeat=heartbeat, quiet=quiet).SerializeToString()

    async def prepare(self, plan: plan_pb2.Plan) -> None:
        await self.call("Ready", pb.ReadyRequest(worker_id=self.worker_id, generation=plan.generation, ready=True, seconds=0.1))

    async def enter(self, plan: plan_pb2.Plan, step: int = 0) -> None:
        self.generation, self.step = plan.generation, step
        request = pb.ReadyRequest(
            worker_id=self.worker_id, generation=self.generation, ready=True, entered=True, step=step, seconds=0.1
        )
        await self.call("Ready", request)

    async def report(self, number: int) -> float:
        """Send an interval's statistics. Returns the moment at which sending began."""
        norms = [1.0 + unit for unit in range(NUM_UNITS)]
        statistics = plan_pb2.IntervalStatistics(
            number=number, first_step=(number - 1) * INTERVAL_STEPS + 1, last_step=number * INTERVAL_STEPS,
            unit_gradient_norms=norms, unit_parameters=[1000] * NUM_UNITS, unit_forward_flops=[1000] * NUM_UNITS,
            learning_rate=0.1, learning_rate_peak=0.1, loss_mean=1.0, accepted_steps=INTERVAL_STEPS,
        )  # fmt: skip
        request = pb.ReportStatisticsRequest(worker_id=self.worker_id, generation=self.generation, statistics=[statistics])
        started = time.monotonic()
        await self.call("ReportStatistics", request)
        return started


class Clients:
    """The simulated workers of this process, and the commands that control them."""

    def __init__(self, workers: list[Simulated]) -> None:
        self.workers = workers
        self._tasks: list[asyncio.Future[None]] = []

    async def start(self) -> dict[str, Any]:
        free = asyncio.Semaphore(JOIN_AT_ONCE)

        async def join(worker: Simulated) -> None:
            async with free:
                await worker.join()
            self._tasks += [worker.watch(), asyncio.ensure_future(worker.beat())]

        await asyncio.gather(*map(join, self.workers))
        return {"joined": len(self.workers)}

    async def enter(self) -> dict[str, Any]:
        """Wait for the first plan, and run it from now on; workers that are not in the plan stay spares."""
        plan = await self._next_plan("fresh")
        members = set(plan.placement.workers)
        inside = [worker for worker in self.workers if worker.worker_id in members]
        await asyncio.gather(*(worker.enter(plan) for worker in inside))
        return {"members": len(members), "pp_degree": plan.placement.pp_degree, "dp_degree": plan.placement.dp_degree,
                "first": plan.placement.workers[0]}  # fmt: skip

    async def prepare(self) -> dict[str, Any]:
        """Wait for a plan that the members switch to, and prepare it. Returns the moment at which all had received it."""
        plan = await self._next_plan("continue")
        reported = time.monotonic()
        await asyncio.gather(*(worker.prepare(plan) for worker in self.workers))
        return {"told": reported, "bytes": plan.ByteSize()}

    async def switch(self) -> dict[str, Any]:
        """Run the prepared plan on all workers from now on, as after the vote that switches once all are ready."""
        plan = await self._next_plan("continue")
        await self._until(lambda: all(plan.generation.counter in worker.ready for worker in self.workers))
        await asyncio.gather(*(worker.enter(plan, plan.switch_from) for worker in self.workers))
        return {"pp_degree": plan.placement.pp_degree, "dp_degree": plan.placement.dp_degree, "at": time.monotonic()}

    async def _next_plan(self, start: str) -> plan_pb2.Plan:
        """Return the next plan with this kind of start, once all workers of this process have it."""
        found: set[int] = set()

        def received() -> bool:
            nonlocal found
            known = [{number for number, plan in worker.plans.items() if plan.start == start} for worker in self.workers]
            found = set.intersection(*known)
            return bool(found)

        await self._until(received)
        return self.workers[0].plans[max(found)]

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
        """Return the heartbeats' latencies since the last call."""
        seconds = [value for worker in self.workers for value in worker.heartbeat_seconds]
        for worker in self.workers:
            worker.heartbeat_seconds.clear()
        return {"seconds": seconds}

    async def _until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not true():
            for task in self._tasks:
                if task.done():
                    task.result()
                    raise RuntimeError("a worker's stream or heartbeats have ended")
            if time.monotonic() > deadline:
                raise TimeoutError(f"not within {WAIT_SECONDS:g} s for {len(self.workers)} workers")
            await asyncio.sleep(0.01)


async def serve(run_dir: Path, first: int, count: int) -> None:
    """Answer commands until standard input ends."""
    address = (run_dir / "controller.address").read_text().strip()
    token = Tokens.read(run_dir / "tokens.json").by_role[WORKER]
    digest = job_digest(load_job(run_dir / "job.yaml"))
    ordinals = range(first, first + count)
    clients = Clients([Simulated(address, token, digest, ordinal) for ordinal in ordinals])
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        answer = await getattr(clients, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
