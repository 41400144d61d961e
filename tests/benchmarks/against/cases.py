"""The measurements in a tree. This package is copied into the other revision's checkout, so that the same code measures both.

The package uses only the parts of `tests.benchmarks` that both trees have: `Stepper`, `subjects`, `members`, `worlds`, `joining`.
"""

import statistics
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHAPES = ((2, 2), (1, 4), (4, 1))
"""The shapes of one turn of a reshape, from (4, 1) back to it."""


@dataclass(frozen=True)
class Sample:
    """One turn. seconds: by the clock. processor: seconds of processor time of all processes of the turn, 0.0 if unknown.
    parts: seconds by phase of the step, if the turn is a step."""

    seconds: float
    processor: float = 0.0
    parts: dict[str, float] = field(default_factory=dict)


class Case(ABC):
    """One measurement. The constructor prepares it; a turn may be taken any number of times."""

    @abstractmethod
    def turn(self) -> Sample:
        """Measure once."""

    def close(self) -> None:  # noqa: B027  most have nothing to end
        """End every process and connection."""


class OneWorker(Case):
    """Steps of a lone worker. steps: number in one turn, after one step that is not counted."""

    def __init__(self, subject: str, steps: int) -> None:
        import torch

        from tests.benchmarks.stepper import Stepper
        from tests.benchmarks.subjects import new_context

        torch.set_num_threads(1)
        self._stepper, self._steps = Stepper(new_context(subject)), steps
        self._stepper.step()

    def turn(self) -> Sample:
        return timed_steps(self._stepper, self._steps)


class Pipeline(Case):
    """Steps of several workers over gloo; seconds are those of the slowest worker, processor time is that of all."""

    def __init__(self, subject: str, pp_degree: int, dp_degree: int, steps: int) -> None:
        self._pool, self._steps = Pool(subject, pp_degree, dp_degree), steps

    def turn(self) -> Sample:
        answers = self._pool.call("member_steps", steps=self._steps)
        return Sample(max(answer["seconds"] for answer in answers), sum(answer["processor"] for answer in answers),
                      answers[0]["parts"])  # fmt: skip

    def close(self) -> None:
        self._pool.close()


class Reshape(Case):
    """Reshapes of four workers in place, from (4, 1) through SHAPES. Seconds: until all are ready to train, summed over the
    shapes. Processor time includes one step a shape."""

    def __init__(self, subject: str) -> None:
        self._pool = Pool(subject, 4, 1)

    def turn(self) -> Sample:
        seconds = processor = 0.0
        for shape in SHAPES:
            answers = self._pool.call("member_reshape", plan=self._pool.next_plan(*shape))
            seconds += max(answer["ready"] for answer in answers) - min(answer["started"] for answer in answers)
            processor += sum(answer["processor"] for answer in answers)
        return Sample(seconds, processor)

    def close(self) -> None:
        self._pool.close()


class CacheRead(Case):
    """Reads of batches of values from a real Redis into the rows of a batch; each value is checked."""

    def __init__(self, batches: int) -> None:
        import os

        from tests.benchmarks import cache_read as bench

        self._batches = batches
        self._folder = tempfile.TemporaryDirectory()
        self._server = bench.start_redis(Path(self._folder.name), 256 << 20)
        self._connection = bench.Connection("127.0.0.1", self._server.port, self._server.password, 0, 5.0)
        codec = bench.make_codec("none", bench.VALUE_SHAPE, bench.torch.float32)
        layout = bench.ValueLayout(codec, bench.tags_of("a secret of the benchmark"))
        keys = [bench.CacheIdentity("benchmark", "d", "train", 6).key(sample, 0) for sample in range(bench.BATCH)]
        payload = memoryview(os.urandom(codec.payload_bytes))
        values = [(key, (layout.header(payload, key), payload)) for key in keys]
        assert set(self._connection.set_many(values, time.monotonic() + 30)) == {bench.Outcome.DONE}
        self._fetch = bench._ways(self._connection, {}, layout, keys)["direct, checked"]

    def turn(self) -> Sample:
        started, started_processor = time.perf_counter(), time.thread_time()
        for _ in range(self._batches):
            self._fetch()
        return Sample(time.perf_counter() - started, time.thread_time() - started_processor)

    def close(self) -> None:
        self._connection.close()
        self._server.stop()
        self._folder.cleanup()


class Recovery(Case):
    """A whole run each turn: SIGKILL of one of four workers until the next committed step."""

    def __init__(self, pp_degree: int, dp_degree: int) -> None:
        self._shape, self._kills = (pp_degree, dp_degree), 0

    def turn(self) -> Sample:
        from tests.benchmarks.worlds import Ours

        world, self._kills = Ours(*self._shape), self._kills + 1
        try:
            world.start()
            killed = world.kill(self._kills)
            return Sample(world.next_commit(killed).time - killed)
        finally:
            world.end()


class Switch(Case):
    """A whole run each turn: the extra time of the first step after each of three planned reshapes."""

    def turn(self) -> Sample:
        from tests.benchmarks import joining

        return Sample(statistics.fmean(joining._planned(SHAPES)))


class Pool:
    """Warm workers that have entered a first plan and trained one step."""

    def __init__(self, subject: str, pp_degree: int, dp_degree: int) -> None:
        from tests.benchmarks import members
        from tests.benchmarks.subjects import placement_of
        from tests.warm_workers import WarmWorkers

        self._members, self._placement_of = members, placement_of
        self._workers = members.workers_of(pp_degree * dp_degree)
        self._pool = WarmWorkers()
        self._ports = members.store_ports(self._pool, len(self._workers))
        self._plan = members.make_plan(placement_of(pp_degree, dp_degree), self._ports)
        fields = self._plan.model_dump(mode="json")
        members.call_all(self._pool, "start_series", len(self._workers), plan=fields, subject=subject)

    def next_plan(self, pp_degree: int, dp_degree: int) -> dict[str, Any]:
        """Return a plan that continues from the last one."""
        self._plan = self._members.make_plan(self._placement_of(pp_degree, dp_degree), self._ports, self._plan)
        return self._plan.model_dump(mode="json")

    def call(self, function: str, **arguments: Any) -> list[dict[str, Any]]:
        """Run a function of this module on every worker. Returns the workers' answers."""
        from tests.warm_workers import Call

        name = f"{__name__}:{function}"
        return self._pool.call([Call(name, {**arguments, "worker_id": worker}) for worker in self._workers])

    def close(self) -> None:
        self._members.call_all(self._pool, "end_series", len(self._workers))
        self._pool.close()


def member_steps(worker_id: str, steps: int) -> dict[str, Any]:
    """Take steps of the present plan, in a warm worker. Returns a Sample's fields."""
    from tests.benchmarks import members

    standing = members._standing[0]
    standing.stepper.step()
    standing.groups.moving.barrier()
    return vars(timed_steps(standing.stepper, steps, time.process_time))


def member_reshape(worker_id: str, plan: dict[str, Any]) -> dict[str, float]:
    """Enter the next plan, in a warm worker. Returns CLOCK_MONOTONIC moments and the processor time, which includes one step."""
    from tests.benchmarks import members

    started = time.process_time()
    answer = members.reshape(worker_id, plan)
    return {**answer, "processor": time.process_time() - started}


def timed_steps(stepper: Any, steps: int, processor: Callable[[], float] = time.thread_time) -> Sample:
    """Return a sample of several steps. A lone stepper takes an uncounted step first: the other side has used the caches."""
    if processor is time.thread_time:
        stepper.step()
    parts: dict[str, float] = {}
    started, started_processor = time.perf_counter(), processor()
    for _ in range(steps):
        stepper.step()
        for name, seconds in stepper.parts.items():
            parts[name] = parts.get(name, 0.0) + seconds
    return Sample(time.perf_counter() - started, processor() - started_processor, parts)


@dataclass(frozen=True)
class Entry:
    """One row of the table. pairs: default number of pairs."""

    make: Callable[[], Case]
    pairs: int


CASES: dict[str, Entry] = {
    "step-digits": Entry(lambda: OneWorker("digits", 4), 40),
    "step-bert": Entry(lambda: OneWorker("bert", 1), 20),
    "pipeline-digits": Entry(lambda: Pipeline("digits", 2, 1, 4), 40),
    "pipeline-bert": Entry(lambda: Pipeline("bert", 2, 1, 1), 20),
    "replicas-digits": Entry(lambda: Pipeline("digits", 1, 2, 4), 40),
    "reshape-digits": Entry(lambda: Reshape("digits"), 15),
    "reshape-bert": Entry(lambda: Reshape("bert"), 10),
    "cache-read": Entry(lambda: CacheRead(3), 40),
    "switch": Entry(Switch, 6),
    "recovery-1x4": Entry(lambda: Recovery(1, 4), 12),
    "recovery-4x1": Entry(lambda: Recovery(4, 1), 12),
}
