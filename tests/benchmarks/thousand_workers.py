"""The controller on one core with 1,000 simulated workers that report every second: the time to admit them, the latency of
decisions, and the longest time for which the event loop reads no message."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.clients import INTERVAL_STEPS, NUM_UNITS
from tests.benchmarks.footprint import peak_megabytes, processor_seconds
from tests.benchmarks.measuring import Effort, Report, Row, Spread
from tests.benchmarks.watched_controller import longest_turn
from tests.integration.scripted_worker import Operator, make_run, start_controller, stop

ROOT = Path(__file__).parents[2]
WORKERS, QUICK_WORKERS = 1000, 40
PROCESSES, DEPTH = 4, 10
DECISIONS, QUICK_DECISIONS = 40, 4
SETTLE_SECONDS, DECISION_EVERY_SECONDS = 5.0, 1.0
JOINED_GOAL, LATENCY_GOAL, SHARE_GOAL, TURN_GOAL = 20.0, 100.0, 40.0, 250.0
"""Goals in seconds, milliseconds, per cent and milliseconds. No turn of the event loop may come near the silence after which a
worker counts as slow to answer, let alone as gone."""


class ClientProcess:
    """A process of simulated workers, controlled by JSON lines."""

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
    """Measure joins, the settled state, decisions and a reshape."""
    count = QUICK_WORKERS if effort.quick else WORKERS
    with tempfile.TemporaryDirectory() as folder:
        rows = _measure(Path(folder) / "run", count, QUICK_DECISIONS if effort.quick else DECISIONS)
    return Report(
        f"The controller with {count:,} workers on one core",
        f"The real controller process, alone on one core; {count:,} simulated workers in {PROCESSES} processes on the other "
        f"cores, each with a connection of its own, its stream, a heartbeat a second and its own measurements of {NUM_UNITS} "
        "units; as a worker does, they ask for an answer to a heartbeat two seconds after the last one. "
        "The workers write their HTTP/2 frames by hand: with gRPC's client they need more than a core themselves, and the "
        "figures were theirs. A decision a second. Decision latency: from the call that reports an interval's statistics to the "
        "moment when a worker holds the decision, after it was written durably; over all workers and all decisions. The planner "
        "is asked after each. Longest turn: what the controller's event loop does between two looks at its sockets, by the "
        "clock; for so long it hears nobody.",
        rows,
    )


def _measure(run_dir: Path, count: int, decisions: int) -> list[Row]:
    make_run(
        run_dir,
        model={"config": {"num_hidden_layers": NUM_UNITS - 2}},
        training={"steps": 1_000_000, "batch_size": 4096, "micro_batch_size": 4, "reduction_leaves": 1024},
        freeze={"interval_steps": INTERVAL_STEPS, "policy": {"name": "gradient_argmin"}},
        # Pinned, so that all workers are members: the local cluster's planner would use no more than this machine's cores.
        placement={"workers": count, "min_workers": 1, "pp_degree": DEPTH, "dp_degree": count // DEPTH},
        controller={"heartbeat_seconds": 1.0, "dead_after_seconds": 60.0, "start_timeout_seconds": 300.0, "log_level": "warning"},
    )
    own = {max(os.sched_getaffinity(0))}
    with _on(own):
        controller = start_controller(run_dir, module="tests.benchmarks.watched_controller")
    alone = peak_megabytes(controller.pid)
    share = count // PROCESSES
    with _on(os.sched_getaffinity(0) - own or own):
        clients = [ClientProcess(run_dir, number * share, share) for number in range(PROCESSES)]
    try:
        _all(clients, "at", step=0)  # their interpreters have started
        started = time.monotonic()
        _all(clients, "start")
        shape = _all(clients, "enter")[0]
        entered = time.monotonic()
        time.sleep(SETTLE_SECONDS)
        _all(clients, "heartbeats")
        before, began = processor_seconds(controller.pid), time.monotonic()
        slowest, everyone = _decide(clients, shape["first"], decisions)
        decided = time.monotonic()
        time.sleep(SETTLE_SECONDS)
        settled = time.monotonic()
        busy = 100 * (processor_seconds(controller.pid) - before) / (settled - began)
        beats = [1e3 * value for answer in _all(clients, "heartbeats") for value in answer["seconds"]]
        reshaped = _reshape(run_dir, clients, count)
        ended = time.monotonic()
        peak = peak_megabytes(controller.pid)
    finally:
        for client in clients:
            client.close()
        stop(controller)
    place = f"{count:,} workers"
    turns = {name: 1e3 * longest_turn(run_dir, begin, end) for name, begin, end in (
        ("joining", started, entered), ("settling", entered, began), ("deciding", began, decided), ("between", decided, settled),
        ("reshaping", settled, ended),
    )}  # fmt: skip
    note = f"pp {shape['pp_degree']} x dp {shape['dp_degree']}"
    return [
        Row(place, "all joined and in the first plan", "s", Spread.of([entered - started]), at_most=JOINED_GOAL, note=note),
        Row(place, "decision latency, p99 over workers and decisions", "ms", _around(everyone, 0.99), at_most=LATENCY_GOAL),
        Row(place, "decision latency, the slowest worker of each decision", "ms", Spread.of(slowest)),
        Row(place, "heartbeat latency, p99", "ms", _around(beats, 0.99), {"median ms": statistics.median(beats)}),
        Row(place, "controller's share of its core", "%", Spread.of([busy]), at_most=SHARE_GOAL),
        Row(place, "longest turn of the controller's event loop", "ms", Spread.of([max(turns.values())]),
            {f"{name} ms": value for name, value in turns.items()}, at_most=TURN_GOAL),
        Row(place, "a reshape of all, from the command until all run the new plan", "s", Spread.of([reshaped["seconds"]]),
            {"until all hold the plan s": reshaped["told"], "until all have prepared it s": reshaped["prepared"]},
            note=f"to {reshaped['shape']}; the plan has {reshaped['bytes']:,} bytes; the workers prepare it at once"),
        Row(place, "controller's peak resident", "MB", Spread.of([peak]), {"before any worker MB": alone},
            note=f"{1e3 * (peak - alone) / count:.0f} kB a worker, most of it gRPC's connection and stream; the goal of "
            "120 MB is that of the memory benchmark's run"),
    ]  # fmt: skip


@contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    """Bind this process and the processes that it starts meanwhile to these cores; at the end restore this process's cores."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _reshape(run_dir: Path, clients: list[ClientProcess], count: int) -> dict[str, Any]:
    """Reshape all members into pipelines of twice the depth."""
    operator = Operator(run_dir)
    try:
        started = time.monotonic()
        operator.command("reshape", pp_degree=2 * DEPTH, dp_degree=count // (2 * DEPTH))
        reported = _all(clients, "prepare")
        prepared = time.monotonic() - started
        ended = _all(clients, "switch")
    finally:
        operator.close()
    return {
        "seconds": max(answer["at"] for answer in ended) - started,
        "told": max(answer["told"] for answer in reported) - started,
        "prepared": prepared,
        "bytes": reported[0]["bytes"],
        "shape": f"pp {ended[0]['pp_degree']} x dp {ended[0]['dp_degree']}",
    }


def _decide(clients: list[ClientProcess], reporter: str, decisions: int) -> tuple[list[float], list[float]]:
    """Report an interval each second. Returns latencies in milliseconds: each decision's slowest worker's, and all workers'."""
    ordinal = int(reporter.partition("/")[0].removeprefix("uid-"))
    first = next(client for client in clients if ordinal in client.ids)
    slowest, everyone = [], []
    due = time.monotonic()
    for number in range(1, decisions + 1):
        time.sleep(max(0.0, due - time.monotonic()))
        due += DECISION_EVERY_SECONDS
        _all(clients, "at", step=number * INTERVAL_STEPS + 1)
        first.send("report", worker_id=reporter, number=number)
        started = first.answer()["started"]
        received = [at for answer in _all(clients, "decisions", number=number) for at in answer["received"]]
        milliseconds = [1e3 * (at - started) for at in received]
        slowest.append(max(milliseconds))
        everyone += milliseconds
    return slowest, everyone


def _all(clients: list[ClientProcess], do: str, **fields: Any) -> list[dict[str, Any]]:
    """Run a command in every process at once."""
    for client in clients:
        client.send(do, **fields)
    return [client.answer() for client in clients]


def _around(values: list[float], quantile: float) -> Spread:
    """Return the smallest value, the quantile in the median's place, and the largest."""
    ordered = sorted(values)
    place = min(len(ordered) - 1, int(quantile * len(ordered)))
    return Spread(ordered[0], ordered[place], ordered[-1], len(ordered))
