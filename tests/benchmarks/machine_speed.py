"""The machine's speed while a run goes on: the same small work, again and again, timed by its own processor time.

A shared machine is quick in one second and slow in the next, by up to a factor of two, though nothing in it has changed: what
shares its cores is another machine's. Units are measured when a run starts, and steps are taken later. So where one is compared
with the other, each counts in the machine's speed at its time.

    python -m tests.benchmarks.machine_speed FILE      # appends lines until it is ended
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from frostline_controller.cluster.local.child import mortal

WIDTH, HEADS, INNER, SAMPLES, TOKENS = 128, 4, 512, 4, 32
"""A block of a transformer, forward and backward: a few milliseconds of the kind of work that workers do."""
PAUSE_SECONDS = 0.1
"""So short that about ten samples lie in the second or two in which workers measure their units; the work takes a few
hundredths of the processor."""
STARTS_WITHIN_SECONDS = 120.0


@dataclass(frozen=True)
class MachineSpeed:
    """What was measured. samples: (Unix time, processor seconds of the work), in the order of time; at least one."""

    samples: tuple[tuple[float, float], ...]

    def seconds(self, start: float, end: float) -> float:
        """Return the median seconds of the work between two Unix times; of the nearest sample if none lies between them."""
        within = [seconds for at, seconds in self.samples if start <= at <= end]
        nearest = min(self.samples, key=lambda one: abs(one[0] - (start + end) / 2))
        return statistics.median(within or [nearest[1]])

    def slowness(self, start: float, end: float, reference: tuple[float, float]) -> float:
        """Return by what factor the machine was slower between two Unix times than between those of the reference."""
        return self.seconds(start, end) / self.seconds(*reference)


@contextmanager
def measured_beside(file: Path) -> Iterator[None]:
    """Measure in a process of its own, on this thread's processors, until the context or this process ends."""
    command = mortal([sys.executable, "-m", "tests.benchmarks.machine_speed", str(file)])
    probe = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, cwd=Path(__file__).parents[2])
    try:
        deadline = time.monotonic() + STARTS_WITHIN_SECONDS
        while not (file.exists() and file.read_text()):
            if probe.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the measuring of the machine's speed has not started")
            time.sleep(0.05)
        yield
    finally:
        probe.kill()
        probe.wait()


def read_speed(file: Path) -> MachineSpeed:
    """Return what was measured; a line that was being written when the measuring ended does not count."""
    lines = file.read_text().split("\n")[:-1]
    return MachineSpeed(tuple((float(at), float(seconds)) for at, seconds in (line.split() for line in lines)))


def _measure(file: Path) -> None:
    import torch

    torch.set_num_threads(1)
    block = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, dropout=0.0, batch_first=True)
    entry = torch.randn(SAMPLES, TOKENS, WIDTH)
    block(entry).sum().backward()
    while True:
        started = time.thread_time()
        block(entry).sum().backward()
        seconds = time.thread_time() - started
        with file.open("a") as stream:
            stream.write(f"{time.time():.3f} {seconds:.6f}\n")
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    _measure(Path(sys.argv[1]))
