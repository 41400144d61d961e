"""Memory of a real run's processes and of a worker beside a plain loop, and whether any process's memory grows."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.benchmarks.footprint import descendants, peak_megabytes, resident_megabytes
from tests.benchmarks.measuring import Effort, Report, Row, Spread
from tests.benchmarks.subjects import SUBJECTS

ROOT = Path(__file__).parents[2]
SERVICES = {"controller": "frostline_controller --run-dir", "cache server": "frostline_cache_server --run-dir"}
WORKER = "frostline_trainer.process.preload"
SERVICE_GOAL_MEGABYTES = 120.0
GROWTH_GOAL_PERCENT = 2.0
STEPS, QUICK_STEPS = 1000, 60
SETTLED = 0.2
"""The share of the steps after which growth counts: by then every buffer, state and log exists."""
PAIRS = 2
CHILD_STEPS = {"digits": 20, "bert": 4}
RUN_SECONDS_MAX = 400.0
TINY = (
    "model.config.num_hidden_layers=2", "model.config.hidden_size=16", "model.config.num_attention_heads=2",
    "model.config.intermediate_size=32", "training.batch_size=16", "training.micro_batch_size=8", "training.reduction_leaves=2",
    "training.epochs=null", "freeze.interval_steps=50", "placement.workers=2", "placement.initial_pp_degree=1",
    "placement.schedule=1f1b",
)  # fmt: skip


@dataclass
class Watched:
    """Megabytes of one process over a run: (step, resident) pairs, and its peak."""

    samples: list[tuple[int, float]] = field(default_factory=list)
    peak: float = 0.0


def memory(effort: Effort) -> Report:
    """Measure a run of 1,000 steps from outside, and one-worker processes for the peaks."""
    steps = QUICK_STEPS if effort.quick else STEPS
    with tempfile.TemporaryDirectory() as folder:
        watched = watch_run(Path(folder) / "run", steps)
    rows = [
        Row(
            f"{name}, run of {steps} steps",
            "peak resident",
            "MB",
            Spread.of([watched[name].peak]),
            at_most=SERVICE_GOAL_MEGABYTES,
        )
        for name in SERVICES
    ]
    rows += [_growth(name, one, steps) for name, one in watched.items()]
    rows += [row for subject in SUBJECTS for row in _worker_rows(subject, effort)]
    return Report(
        "Memory",
        f"A real `frostline run` of a tiny digits job ({steps} steps, two workers, freezing, cache and controller on) watched "
        "through /proc: the services' peak, and every process's growth, the median of its last tenth of samples over that of the "
        "tenth just after it had settled (a fifth of the run). Beside it the peak of a process that runs the engine on one "
        "worker and of one that runs the plain loop, interpreter and libraries included.",
        rows,
    )


def _growth(name: str, watched: Watched, steps: int) -> Row:
    values = [resident for step, resident in watched.samples if step >= SETTLED * steps]
    tenth = max(1, len(values) // 10)
    early, late = sorted(values[:tenth])[tenth // 2], sorted(values[-tenth:])[tenth // 2]
    return Row(f"{name}, steps {round(SETTLED * steps)} to {steps}", "growth", "%", Spread.of([100 * (late / early - 1)]),
               {"early MB": early, "late MB": late}, at_most=GROWTH_GOAL_PERCENT)  # fmt: skip


def watch_run(folder: Path, steps: int) -> dict[str, Watched]:
    """Run the tiny job and sample its controller, cache server and workers until it ends."""
    job = ROOT / "examples" / "image_classification" / "digits.yaml"
    command = [sys.executable, "-m", "frostline_controller.cli", "run", "-f", str(job), "--out", str(folder)]
    for text in (*TINY, f"training.steps={steps}"):
        command += ["--set", text]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with open(folder.with_suffix(".log"), "wb") as log:
        run = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=environment, start_new_session=True)
    watched: dict[str, Watched] = {}
    names: dict[int, str] = {}
    deadline = time.monotonic() + RUN_SECONDS_MAX
    try:
        while run.poll() is None and time.monotonic() < deadline:
            _sample(run.pid, folder / "metrics.jsonl", watched, names)
            time.sleep(0.1)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGTERM)
            run.wait(30)
    if run.returncode != 0:
        raise RuntimeError(
            f"the watched run ended with status {run.returncode}:\n{folder.with_suffix('.log').read_text()[-2000:]}"
        )
    missing = [name for name in SERVICES if name not in watched]
    if missing or not any(name.startswith("worker") for name in watched):
        raise RuntimeError(f"the watched run had no {', '.join(missing) or 'worker'} process; seen: {sorted(watched)}")
    return watched


def _sample(process_id: int, metrics: Path, watched: dict[str, Watched], names: dict[int, str]) -> None:
    """Sample every process of the run once. names: process id -> name, kept from sample to sample."""
    step = _last_step(metrics)
    for one in descendants(process_id):
        # A worker is a fork of the preload process, and has the same command line.
        if WORKER in one.command and WORKER in one.parent_command:
            names.setdefault(one.process_id, f"worker {sum(name.startswith('worker') for name in names.values())}")
        for name, part in SERVICES.items():
            if part in one.command:
                names.setdefault(one.process_id, name)
    for number, name in list(names.items()):
        try:
            resident, peak = resident_megabytes(number), peak_megabytes(number)
        except ProcessLookupError:
            del names[number]  # it has ended
            continue
        seen = watched.setdefault(name, Watched())
        seen.peak = max(seen.peak, peak)
        if step:
            seen.samples.append((step, resident))


def _last_step(metrics: Path) -> int:
    """Return the newest record's step; 0 before there is a record."""
    if not metrics.exists():
        return 0
    with open(metrics, "rb") as file:
        file.seek(max(0, metrics.stat().st_size - 8192))
        lines = [line for line in file.read().split(b"\n")[1:] if line.startswith(b"{") and line.endswith(b"}")]
    return json.loads(lines[-1]).get("step", 0) if lines else 0


def _worker_rows(subject: str, effort: Effort) -> list[Row]:
    pairs = [(_child("engine", subject), _child("loop", subject)) for _ in range(effort.pairs(PAIRS))]
    rows = []
    for figure, part in (("peak", lambda child: child[1]), ("peak above the imports", lambda child: child[1] - child[0])):
        sides = {
            name: Spread.of([part(pair[place]) for pair in pairs]).median for place, name in enumerate(("engine MB", "loop MB"))
        }
        spread = Spread.of([part(engine) / part(loop) for engine, loop in pairs])
        rows.append(Row(f"worker, {subject}", f"engine / plain loop, {figure}", "x", spread, sides))
    return rows


def _child(way: str, subject: str) -> tuple[float, float]:
    """Return megabytes of a process that takes some steps: resident after the imports, and its peak."""
    command = [sys.executable, "-m", "tests.benchmarks.peak_child", way, subject, str(CHILD_STEPS[subject])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command[1:])} ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    imported, peak = done.stdout.split()[-2:]
    return float(imported), float(peak)
