"""The controller on one core with 1,000 simulated workers that report every second: how fast decisions leave it."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.benchmarks.clients import INTERVAL_STEPS, NUM_UNITS
from tests.benchmarks.footprint import peak_megabytes, processor_seconds
from tests.benchmarks.measuring import Effort, Report, Row, Spread
from tests.integration.scripted_worker import make_run, start_controller, stop

ROOT = Path(__file__).parents[2]
WORKERS, QUICK_WORKERS = 1000, 40
PROCESSES, DEPTH = 4, 10
DECISIONS, QUICK_DECISIONS = 40, 4
SETTLE_SECONDS = 5.0


class ClientProcess:
    """A process of simulated workers, steered by JSON lines."""

    def __init__(self, run_dir: Path, first: int, count: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.clients", str(run_dir), str(first), str(count)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        self.ids = range(first, first + count)

    def send(self, do: str, **fields: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of simulated workers ended with status {self._process.wait(30)}")
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)


def thousand_workers(effort: Effort) -> Report:
    """Join, settle, decide."""
    count = QUICK_WORKERS if effort.quick else WORKERS
    with tempfile.TemporaryDirectory() as folder:
        rows = _measure(Path(folder) / "run", count, QUICK_DECISIONS if effort.quick else DECISIONS)
    return Report(
        f"The controller with {count:,} workers on one core",
        f"The real controller process, bound to one core; {count:,} simulated workers in {PROCESSES} processes, each with a "
        "connection of its own, its stream and a heartbeat a second. Decision latency: from the call that reports an "
        "interval's statistics to the moment when a worker holds the decision, after it was written durably; over all workers "
        "and all decisions. The planner is asked after each. The simulated workers share the machine's other cores, so that on "
        "two cores their own delay is part of the figures.",
        rows,
    )


def _measure(run_dir: Path, count: int, decisions: int) -> list[Row]:
    make_run(
        run_dir,
        model={"config": {"num_hidden_layers": NUM_UNITS - 2}},
        training={"steps": 1_000_000, "batch_size": 4096, "micro_batch_size": 4, "reduction_leaves": 1024},
        freeze={"interval_steps": INTERVAL_STEPS, "policy": {"name": "gradient_argmin"}},
        # Pinned, so that all of them are members: the local cluster's planner would not go beyond this machine's cores.
        placement={"workers": count, "min_workers": 1, "pp_degree": DEPTH, "dp_degree": count // DEPTH},
        controller={"heartbeat_seconds": 1.0, "dead_after_seconds": 60.0, "start_timeout_seconds": 300.0, "log_level": "warning"},
    )
    controller = _on_one_core(run_dir)
    alone = peak_megabytes(controller.pid)
    share = count // PROCESSES
    clients = [ClientProcess(run_dir, number * share, share) for number in range(PROCESSES)]
    try:
        started = time.monotonic()
        _all(clients, "start")
        shape = _all(clients, "enter")[0]
        joined = time.monotonic() - started
        time.sleep(SETTLE_SECONDS)
        _all(clients, "heartbeats")
        before, began = processor_seconds(controller.pid), time.monotonic()
        slowest, everyone = _decide(clients, shape["first"], decisions)
        time.sleep(SETTLE_SECONDS)
        busy = 100 * (processor_seconds(controller.pid) - before) / (time.monotonic() - began)
        beats = [1e3 * value for answer in _all(clients, "heartbeats") for value in answer["seconds"]]
        peak = peak_megabytes(controller.pid)
    finally:
        for client in clients:
            client.close()
        stop(controller)
    place = f"{count:,} workers"
    note = f"pp {shape['pp_degree']} x dp {shape['dp_degree']}, all joined and in the first plan after {joined:.1f} s"
    return [
        Row(place, "decision latency, p99 over workers and decisions", "ms", _around(everyone, 0.99), note=note),
        Row(place, "decision latency, the slowest worker of each decision", "ms", Spread.of(slowest)),
        Row(place, "heartbeat latency, p99", "ms", _around(beats, 0.99), {"median ms": statistics.median(beats)}),
        Row(place, "controller's share of its core", "%", Spread.of([busy])),
        Row(place, "controller's peak resident", "MB", Spread.of([peak]), {"before any worker MB": alone},
            note=f"{1e3 * (peak - alone) / count:.0f} kB a worker, most of it gRPC's connection and stream; the goal of "
            "120 MB is that of the memory benchmark's run"),
    ]  # fmt: skip


def _on_one_core(run_dir: Path) -> "subprocess.Popen[bytes]":
    """Start the controller bound to the last core that this process may use; this process keeps all of its own."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        return start_controller(run_dir)
    finally:
        os.sched_setaffinity(0, cores)


def _decide(clients: list[ClientProcess], reporter: str, decisions: int) -> tuple[list[float], list[float]]:
    """Report intervals one after the other. Returns milliseconds: the slowest worker of each decision, and every worker's."""
    ordinal = int(reporter.partition("/")[0].removeprefix("uid-"))
    first = next(client for client in clients if ordinal in client.ids)
    slowest, everyone = [], []
    for number in range(1, decisions + 1):
        _all(clients, "at", step=number * INTERVAL_STEPS + 1)
        first.send("report", worker_id=reporter, number=number)
        started = first.answer()["started"]
        received = [at for answer in _all(clients, "decisions", number=number) for at in answer["received"]]
        milliseconds = [1e3 * (at - started) for at in received]
        slowest.append(max(milliseconds))
        everyone += milliseconds
    return slowest, everyone


def _all(clients: list[ClientProcess], do: str, **fields: Any) -> list[dict[str, Any]]:
    """Every process does it at once."""
    for client in clients:
        client.send(do, **fields)
    return [client.answer() for client in clients]


def _around(values: list[float], quantile: float) -> Spread:
    """The smallest, the quantile in the median's place, and the largest."""
    ordered = sorted(values)
    place = min(len(ordered) - 1, int(quantile * len(ordered)))
    return Spread(ordered[0], ordered[place], ordered[-1], len(ordered))
