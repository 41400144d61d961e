"""Whole runs on workers of fixed speed, for benchmarks: jobs that pass through shapes at given steps, and the planner's
prediction of each stretch of steps beside the measured time."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from frostline_contract.plan import Placement
from frostline_contract.run_directory import RunDirectory
from frostline_contract.statistics import StepRecord, StepTrace
from frostline_controller.simulation.finished import FinishedRun, read_finished
from frostline_controller.simulation.measured import Compared
from frostline_controller.simulation.question import Answer, Question, answer
from tests.benchmarks.devices import one_processor
from tests.benchmarks.fixed_speed_jobs import made_texts
from tests.benchmarks.machine_speed import MachineSpeed, measured_beside, read_speed

ROOT = Path(__file__).parents[2]
LOGGED_AT = "%Y-%m-%d %H:%M:%S,%f"
MEASURED = re.compile(r"(?P<end>\S+ \S+) .* frostline_trainer\.profile measured \d+ units in (?P<seconds>[\d.]+) s$")
"""A worker's log line at the end of its measuring."""
RUN_SECONDS = 1200.0
SETTLING = 3
"""Steps after a reshape that are not counted: first uses of memory, messages and files."""
AROUND_SECONDS = 1.0
"""Seconds before and after a step in which the machine's speed counts for it: enough samples for a median."""
AT_ONE_SPEED = (
    "The machine's own speed changes by the second: the same small work, timed all the while, says by what factor it was "
    "slower in a step than in the second or two in which the workers measured their units, and each step counts at the speed of "
    "that time."
)
"""A sentence for every report whose steps are those of `Stretch.seconds`."""


@dataclass(frozen=True)
class Stretch:
    """Consecutive steps of one placement.

    Attributes:
        seconds: of each step, without the first SETTLING steps, as long as it would have taken at the machine's speed of the time
            when units were measured (`measured_within`).
        slowness: by what factor the machine was slower than then, in the median step.
        predicted: seconds of a step by the planner's cost model.
        parts: of a predicted step.
        phases: median seconds of the measured steps' phases.
        counted_bytes: of tensors on the fullest worker, in the first step; 0 if the job sets no worker_memory_bytes.
        traced: for each traced step, its trace on each pipeline rank of the first replica.
    """

    placement: Placement
    seconds: tuple[float, ...]
    predicted: float
    parts: dict[str, float]
    phases: dict[str, float]
    counted_bytes: int = 0
    slowness: float = 1.0
    traced: tuple[tuple[StepTrace, ...], ...] = ()

    @property
    def measured(self) -> float:
        return median(self.seconds)

    @property
    def errors(self) -> list[float]:
        """The prediction's excess over each measured step, in percent."""
        return [100 * (self.predicted / one - 1) for one in self.seconds]

    @property
    def error(self) -> float:
        """The prediction's excess over the median measured step, in percent."""
        return 100 * (self.predicted / self.measured - 1)

    def in_words(self) -> str:
        """The parts of the predicted and of the measured step in words, in milliseconds."""
        ours, theirs = _milliseconds(self.parts), _milliseconds(self.phases)
        return f"predicted {ours}; measured on the first worker {theirs}"


def _milliseconds(parts: dict[str, float]) -> str:
    large = {name: seconds for name, seconds in parts.items() if seconds >= 5e-4}
    return ", ".join(f"{name} {1e3 * seconds:.3g}" for name, seconds in large.items())


@dataclass(frozen=True)
class Walked:
    """A run that has ended.

    Attributes:
        answer: the result of `frostline simulate` for the run.
        speed: of the machine, from before the run's start to its end.
        measuring: Unix times between which the workers measured their units.
    """

    run: FinishedRun
    answer: Answer
    speed: MachineSpeed
    measuring: tuple[float, float]

    @property
    def stretches(self) -> list[Stretch]:
        """The run's stretches in order, without those too short to be judged."""
        assert self.answer.comparison is not None
        return [one for row in self.answer.comparison.rows if (one := self._stretch(row)) is not None]

    def _stretch(self, row: Compared) -> Stretch | None:
        records = [one for one in self.run.data.records if row.first_step + SETTLING <= one.step < row.first_step + row.steps]
        plan = self.run.data.plan_of(records[0].generation) if records else None
        if plan is None or len(records) < SETTLING:
            return None
        held = {one["generation"]: int(one["tensor_bytes"]) for one in self.run.data.result.get("memory", ())}
        slow = [self.slowness(one) for one in records]
        seconds = tuple(one.step_seconds / factor for one, factor in zip(records, slow, strict=True))
        phases, counted = _phases(records, median(slow)), held.get(records[0].generation, 0)
        traced = self._traced({one.step for one in records}, plan.placement.pp_degree)
        return Stretch(plan.placement, seconds, row.predicted, row.parts, phases, counted, median(slow), traced)

    def _traced(self, steps: set[int], pp_degree: int) -> tuple[tuple[StepTrace, ...], ...]:
        """Return the traces of those of the steps that all pipeline ranks traced."""
        by_step: dict[int, dict[int, StepTrace]] = {}
        for trace in self.run.data.traces:
            by_step.setdefault(trace.step, {})[trace.pp_rank] = trace
        whole = {step: ranks for step, ranks in sorted(by_step.items()) if step in steps and len(ranks) == pp_degree}
        return tuple(tuple(ranks[pp_rank] for pp_rank in range(pp_degree)) for ranks in whole.values())

    def slowness(self, record: StepRecord) -> float:
        """Return by what factor the machine was slower in a step than when units were measured."""
        end = record.time_seconds
        return self.speed.slowness(end - record.step_seconds - AROUND_SECONDS, end + AROUND_SECONDS, self.measuring)


def _phases(records: Sequence[StepRecord], slowness: float) -> dict[str, float]:
    names = dict.fromkeys(name for one in records for name in one.step_parts)
    return {name: median(one.step_parts.get(name, 0.0) for one in records) / slowness for name in names}


def walk(job: dict[str, Any]) -> Walked:
    """Run a job to its end in a folder of its own. Raises RuntimeError with the run's output if it fails."""
    with tempfile.TemporaryDirectory(prefix="bench-") as text:
        folder = Path(text)
        if job["data"]["source"] == "csv":
            job = {**job, "data": {**job["data"], "path": str(made_texts(folder / "texts.csv"))}}
        (folder / "job.yaml").write_text(yaml.safe_dump(job, sort_keys=False))
        words = ["run", "-f", str(folder / "job.yaml"), "--out", str(folder / "run"), "--quiet", "--no-report"]
        command = [sys.executable, "-m", "frostline_controller.cli", *words]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        with one_processor(), measured_beside(folder / "speed"):
            ended = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
        if ended.returncode != 0:
            raise RuntimeError(f"the run ended with status {ended.returncode}: {(ended.stdout + ended.stderr)[-1500:]}")
        run = read_finished(folder / "run")
        measuring = measured_within(RunDirectory(folder / "run").logs)
        return Walked(run, answer(Question(run=run, arms=("job",))), read_speed(folder / "speed"), measuring)


def measured_within(logs: Path) -> tuple[float, float]:
    """Return the Unix times between which a run's workers measured their units, by their logs.

    A run starts for ten seconds before that, on a machine that may change its speed meanwhile, and the time of the whole start
    would stand for another speed than the units' own.

    Args:
        logs: the run's folder of logs.

    Raises:
        ValueError: no worker has measured.
    """
    found = [MEASURED.match(line) for file in logs.glob("trainer-*.log") for line in file.read_text().splitlines()]
    ends = [(datetime.strptime(one["end"], LOGGED_AT).timestamp(), float(one["seconds"])) for one in found if one is not None]
    if not ends:
        raise ValueError(f"{logs}: no worker's log says that it measured its units")
    return min(end - seconds for end, seconds in ends), max(end for end, _ in ends)
