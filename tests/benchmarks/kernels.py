"""The cost of kernels that do not depend on addresses: MKL's strict mode of reproducibility against its own choice."""

import subprocess
import sys
from pathlib import Path

from frostline_trainer.process.kernels import settle_kernels
from tests.benchmarks.measuring import Effort, Report, Row, Spread, milliseconds, ratios
from tests.benchmarks.subjects import SUBJECTS

ROOT = Path(__file__).parents[2]
PAIRS = {"digits": 40, "bert": 12}


class StepProcess:
    """A process that takes a step on request."""

    def __init__(self, subject: str, mode: str) -> None:
        words = [sys.executable, "-m", "tests.benchmarks.kernel_child", subject, mode]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

    def step(self) -> float:
        """Take one step. Returns its processor seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def kernels(effort: Effort) -> Report:
    """Measure two processes that take steps in turns."""
    chosen: dict[str, str] = {}
    settle_kernels(chosen)
    return Report(
        "Kernels that do not depend on addresses",
        f"The engine's step in a process with MKL_CBWR={chosen['MKL_CBWR']}, which Frostline sets, against one where MKL chooses "
        "by itself and gives other bits at other addresses; in turns, processor time. Row-independent kernels cost nothing: "
        "where the machine has none, the start-up check says what one sample at a time costs.",
        [strict_cost(subject, effort.pairs(PAIRS[subject])) for subject in SUBJECTS],
    )


def strict_cost(subject: str, pairs: int) -> Row:
    """Return the row of MKL's strict mode over its own choice: processor time of a subject's steps, in `pairs` pairs."""
    chosen: dict[str, str] = {}
    settle_kernels(chosen)
    mode = chosen["MKL_CBWR"]
    processes = {name: StepProcess(subject, name) for name in (mode, "none")}
    seconds: dict[str, list[float]] = {name: [] for name in processes}
    try:
        for turn in range(pairs + 1):
            for name in processes if turn % 2 == 0 else reversed(processes):
                taken = processes[name].step()
                if turn:
                    seconds[name].append(taken)
    finally:
        for process in processes.values():
            process.close()
    sides = {f"{name} ms": milliseconds(values) for name, values in seconds.items()}
    return Row(subject, "strict / MKL's own choice", "x", Spread.of(ratios(seconds[mode], seconds["none"])), sides)
