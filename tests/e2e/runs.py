"""Whole runs through the real command: a shared preload process, and the results of a run for comparison."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

ROOT = Path(__file__).resolve().parents[2]
WARM_SECONDS = 120.0
RUN_SECONDS = 240.0
"""Far above the duration of a run here on two busy cores, so that a run that hangs fails its test."""

FROSTLINE = (sys.executable, "-m", "frostline_controller.cli.main")

TINY_DIGITS: dict[str, Any] = {
    "name": "tiny",
    "model": {
        "family": "vit",
        "config": {
            "hidden_size": 32,
            "num_hidden_layers": 5,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "patch_size": 4,
        },
        "dropout": 0.1,
    },
    "task": {"kind": "image_classification"},
    "data": {
        "source": "digits",
        "max_samples": 320,
        "augmentation": {"mode": "k-variants", "variants": 2, "shift_pixels": 1},
    },
    "training": {"steps": 60, "batch_size": 32, "micro_batch_size": 4, "reduction_leaves": 8},
    # Freeze point 2 from step 11 on and 4 from step 27 on; on so few steps the guard would only measure noise.
    "freeze": {
        "interval_steps": 8,
        "policy": {"name": "manual", "points": {1: 2, 3: 4}},
        "rails": {"guard_margin": 10.0, "total_fraction": 0.7},
    },
    "decisions": {"wait_seconds": 120.0},
    "placement": {"workers": 1, "reshape_every_freeze": True},
    "cache": {"use": "always", "memory_bytes": 64 << 20},
    "controller": {"heartbeat_seconds": 0.1, "dead_after_seconds": 60.0},
}

THREE_REPLICAS = {"pp_degree": 1, "dp_degree": 3}
"""A pinned placement, for tests that hurt a worker of three: else the planner may have left that worker out by then."""


def slowed(step: int, seconds: float, workers: int) -> list[dict[str, Any]]:
    """Faults by which each of the first `workers` workers takes `seconds` more for each of twenty steps, from `step` on.

    They change no bit. A run of milliseconds a step would else be over, or past the step in question, before a test has acted, a
    service or a worker has come back, or a plan has been prepared, on a busy machine or a slow disk.
    """
    return [{"kind": "slow", "step": step, "worker": worker, "seconds": seconds} for worker in range(workers)]


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `base` with `changes` merged in, section by section; a model's config comes entirely from one of the two."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict) and key != "config"
        result[key] = merged(result[key], value) if both else value
    return result


@dataclass(frozen=True)
class Ended:
    """A run that has ended: its directory, exit status and whole output."""

    folder: Path
    code: int
    output: str

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.folder / "result.json").read_text())

    @property
    def digest(self) -> str:
        assert self.code == 0, self.story()
        return self.result["digest"]

    @property
    def records(self) -> list[dict[str, Any]]:
        """The surviving records, by step: a lineage cut takes back what earlier lineages recorded above it."""
        kept: dict[int, dict[str, Any]] = {}
        for line in json_lines(self.folder / "metrics.jsonl"):
            if "starts_at_step" in line:
                kept = {step: record for step, record in kept.items() if step <= line["starts_at_step"]}
            else:
                assert line["step"] not in kept, f"step {line['step']} is recorded twice in lineage {line['lineage']}"
                kept[line["step"]] = line
        return [kept[step] for step in sorted(kept)]

    @property
    def losses(self) -> list[float]:
        return [record["loss"] for record in self.records]

    @property
    def numerics(self) -> list[tuple[Any, ...]]:
        """The values of each step that no placement may change, with all their bits."""
        names = ("step", "loss", "learning_rate", "gradient_norm", "unit_gradient_norms", "freeze_point", "refused")
        return [(*(repr(record[name]) for name in names), repr(sorted(record["evaluation"].items()))) for record in self.records]

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """(pp degree, dp degree) in the order in which the run went through them."""
        every = [(record["degrees"]["pp"], record["degrees"]["dp"]) for record in self.records]
        return [shape for index, shape in enumerate(every) if index == 0 or shape != every[index - 1]]

    def lines(self, name: str) -> list[dict[str, Any]]:
        return json_lines(self.folder / name)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.lines("events.jsonl") if event["kind"] == kind]

    @property
    def decisions(self) -> list[dict[str, Any]]:
        return [line for line in self.lines("plans.jsonl") if line["kind"] == "decision"]

    @property
    def plans(self) -> list[dict[str, Any]]:
        return [line for line in self.lines("plans.jsonl") if line["kind"] == "plan"]

    def fault(self, index: int) -> dict[str, Any]:
        """Return the details of a planned fault that has happened."""
        return json.loads((self.folder / "cluster" / "faults" / str(index)).read_text())

    def story(self) -> str:
        """The run's output and the end of every log, for a failing assertion."""
        logs = [
            f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in sorted((self.folder / "logs").glob("*.log"))
        ]
        return f"exit {self.code}\n{self.output[-3000:]}\n" + "\n".join(logs)


def json_lines(path: Path, length: int | None = None) -> list[dict[str, Any]]:
    """Return every whole line of a file of JSON lines, or of its first `length` bytes; the last may still be half written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes()[:length].splitlines(keepends=True) if line.endswith(b"\n")]


class Running:
    """A `frostline run` or `resume` in a process of its own."""

    def __init__(
        self, folder: Path, argv: list[str], env: dict[str, str], before_it_starts: Callable[[], None] | None = None
    ) -> None:
        self.folder = folder
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as this object

        def in_the_child() -> None:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup, which a run respects
            if before_it_starts is not None:
                before_it_starts()

        self.process = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=self._said, stderr=self._said, preexec_fn=in_the_child
        )

    @property
    def step(self) -> int:
        """The newest durable step."""
        return max((line.get("step", 0) for line in json_lines(self.folder / "metrics.jsonl")), default=0)

    def wait_for_step(self, step: int) -> None:
        """Wait until `step` is durable. Fails if the run ends or hangs before."""
        self.wait_until(lambda: self.step >= step, f"step {step}")

    def wait_until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + RUN_SECONDS
        while not (found := condition()):
            assert self.process.poll() is None, f"the run ended before {what}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {what} within {RUN_SECONDS:g} s:\n{self.text}"
            time.sleep(0.05)
        return found

    def children(self, module: str) -> list[psutil.Process]:
        """Return the processes of this run whose command line has `module` as a word."""
        found = []
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if module in child.cmdline():
                    found.append(child)
            except psutil.NoSuchProcess:
                continue
        return found

    def interrupt(self) -> None:
        """Send SIGINT, as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> Ended:
        """Wait for the run's end."""
        try:
            code = self.process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        return Ended(self.folder, code, self.text)

    @property
    def text(self) -> str:
        """What the run has said so far. Its processes go on writing at the file's own position, which this leaves as it is."""
        said = self._said.fileno()
        return os.pread(said, os.fstat(said).st_size, 0).decode(errors="replace")


@contextmanager
def warm_preload(inside: Sequence[str] = (), **more_env: str) -> Iterator[str]:
    """Start a preload process that several runs share; yields its socket. inside: a command that runs the rest of its words."""
    with tempfile.TemporaryDirectory(prefix="frostline-e2e-") as folder:
        socket = Path(folder) / "preload.sock"
        words = [*inside, sys.executable, "-m", "frostline_trainer.process.preload", str(socket)]
        process = subprocess.Popen(words, env={**os.environ, **more_env})
        deadline = time.monotonic() + WARM_SECONDS
        while not socket.exists():
            assert process.poll() is None, "the preload process ended"
            assert time.monotonic() < deadline, f"the preload process was not ready within {WARM_SECONDS:g} s"
            time.sleep(0.05)
        yield str(socket)
        process.terminate()
        assert process.wait(60) == 0


class Workshop:
    """Starts runs that share one preload process."""

    def __init__(self, preload: str) -> None:
        self.env = {**os.environ, "FROSTLINE_PRELOAD": preload, "OMP_NUM_THREADS": "1"}
        self.started: list[Running] = []

    def start(
        self,
        folder: Path,
        changes: dict[str, Any] | None = None,
        *arguments: str,
        before_it_starts: Callable[[], None] | None = None,
        report: bool = False,
        inside: Sequence[str] = (),
        frostline: Sequence[str] = FROSTLINE,
        **more_env: str,
    ) -> Running:
        """Start `frostline run` of the tiny digits job with changes, in `folder`.

        before_it_starts: called in the new process. report: whether report.html is drawn, a fifth of so short a run's time.
        inside: a command that runs the rest of its words. frostline: another way to start the command.
        """
        job = folder.with_suffix(".yaml")
        job.write_text(yaml.safe_dump(merged(TINY_DIGITS, changes or {}), sort_keys=False))
        words = ["run", "-f", str(job), "--out", str(folder), *([] if report else ["--no-report"]), *arguments]
        return self._start(folder, *words, command=(*inside, *frostline), before=before_it_starts, **more_env)

    def run(self, folder: Path, changes: dict[str, Any] | None = None, *arguments: str, report: bool = False) -> Ended:
        return self.start(folder, changes, *arguments, report=report).end()

    def resume(self, folder: Path, *arguments: str) -> Ended:
        return self._start(folder, "resume", str(folder), "--no-report", *arguments).end()

    def command(self, *arguments: str, **more_env: str) -> subprocess.CompletedProcess[str]:
        """Run any other `frostline` command to its end."""
        return subprocess.run(
            [*FROSTLINE, *arguments],
            env={**self.env, **more_env},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )

    def close(self) -> None:
        """End the runs that a failed test has left."""
        for running in self.started:
            if running.process.poll() is None:
                running.process.kill()
                running.process.wait()

    def _start(
        self,
        folder: Path,
        *arguments: str,
        command: Sequence[str] = FROSTLINE,
        before: Callable[[], None] | None = None,
        **more_env: str,
    ) -> Running:
        self.started.append(Running(folder, [*command, *arguments], {**self.env, **more_env}, before))
        return self.started[-1]
