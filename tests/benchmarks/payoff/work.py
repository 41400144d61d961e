"""The pieces of work: preparation of a task, some steps of a static placement, a whole run. Each returns its line's figures."""

import datetime
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from frostline_contract.job import Job, load_job
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import RunStatus
from frostline_contract.statistics import SizeProfiles
from frostline_controller.cluster.local.measuring import measured_here
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.separate_process import RunError, SeparateProcess
from frostline_controller.planner.inputs import parallel_slots
from frostline_controller.planner.numerics import settle_measured
from frostline_controller.report.data import read_run
from frostline_controller.report.figures import read_figures
from tests.benchmarks.devices import WORKERS, one_processor
from tests.benchmarks.measuring import rounded, surroundings
from tests.benchmarks.payoff.lines import Key, Line
from tests.benchmarks.payoff.static_search import CAP_DEVICES, WHOLE, Candidate, candidates, memory_cap
from tests.benchmarks.payoff.tasks import PLACE, ROOT, TASKS, Task, arm_fields, switches

FROSTLINE = "frostline_controller.cli.main"
CANDIDATE_STEPS, WARM_UP_STEPS = 12, 4
UNFROZEN = (*switches(()), "training.numerics=fast", *WHOLE)
NOT_TIMED = ("evaluation.test_at_end=false",)
"""Settings of timed runs. The test split is scored in the accuracy runs only: both arms would spend the same time on it."""


def circumstances(device: str = "cpu") -> Line:
    """Return the machine, date and commit of a line. device: where its run computed."""
    found = surroundings()
    machine = found["device"] if device == "cpu" else f"{torch.cuda.get_device_name()}, {found['device']}"
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "machine": machine,
        "system": platform.system(),
        "torch": found["versions"]["torch"],
        "load": found["load"],
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M"),
        "commit": commit.stdout.strip(),
    }


def prepare(key: Key) -> Line:
    """Find the task's cap in bytes (null: none), the numerics that `auto` becomes under it, and static placements that fit."""
    task = TASKS[key.task]
    overrides = task.overrides(key.scale)
    unfrozen = load_job(str(task.job), [*overrides, *UNFROZEN])
    measured = _unit_costs(unfrozen, PLACE / f"{key.task}-{key.scale}-sizes.json")
    cap = memory_cap(unfrozen, measured) if key.cap == "capped" else None
    elastic = load_job(str(task.job), [*overrides, *elastic_cap_fields(cap)])
    settled = settle_measured(elastic, measured, parallel_slots(elastic, 1))
    found = candidates(unfrozen, measured, WORKERS, cap)
    return {
        "cap_bytes": cap,
        "batch_size": unfrozen.training.batch_size,
        "micro_batch": settled.micro_batch_size,
        "leaves": settled.reduction_leaves,
        "reason": settled.reason,
        "candidates": [rounded(one.as_json()) for one in found],
        **circumstances(),
    }


def _unit_costs(job: Job, out: Path) -> SizeProfiles:
    """Measure unit costs on the benchmark's devices, all of them at the same time; the result is kept beside the run
    directories."""
    if not out.exists():
        with one_processor():
            measured = measured_here(job)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(measured.model_dump_json())
    return SizeProfiles.model_validate_json(out.read_text())


def candidates_of(prepared: Line) -> list[Candidate]:
    """Return the static placements of a prepared line."""
    return [Candidate(**one) for one in prepared["candidates"]]


def cap_fields(cap: int | None) -> list[str]:
    """Return the memory cap, in the form of `--set`."""
    return [] if cap is None else [f"placement.worker_memory_bytes={cap}"]


def elastic_cap_fields(cap: int | None) -> list[str]:
    """Return the cap, and the number of devices below which the run waits: else `auto` must find numerics that fit on one."""
    return [] if cap is None else [*cap_fields(cap), f"placement.min_workers={CAP_DEVICES}"]


def measure_candidate(key: Key, prepared: Line, candidate: Candidate) -> Line:
    """Measure the median seconds of some steps of a static placement; null, with the reason, if its run refuses the placement."""
    steps = (f"training.steps={CANDIDATE_STEPS}", "training.epochs=null", "evaluation.every_intervals=0")
    settings = [*static_settings(prepared, candidate), *steps, *NOT_TIMED]
    folder = PLACE / "work" / key.words().replace(" ", "_")
    try:
        _run(TASKS[key.task], key.scale, folder, candidate.workers, settings)
    except RuntimeError as refused:
        return {"seconds": None, "refused": str(refused)[-300:], **circumstances()}
    steps_taken = [record.step_seconds for record in read_run(folder).records[WARM_UP_STEPS:]]
    shutil.rmtree(folder)
    return {
        "seconds": round(statistics.median(steps_taken), 4),
        "predicted_seconds": candidate.predicted_seconds,
        "steps": len(steps_taken),
        **circumstances(),
    }


def static_settings(prepared: Line, candidate: Candidate) -> list[str]:
    """Return a static run's settings: nothing elastic, fast numerics, a pinned placement, no scores that only freezing needs."""
    pinned = candidate.settings(prepared["batch_size"])
    return [*switches(()), *pinned, "evaluation.every_intervals=0", *cap_fields(prepared["cap_bytes"])]


def elastic_settings(task: Task, prepared: Line, arm: str) -> list[str]:
    """Return the settings of a run with the arm's switches, exact numerics and the numbers that `auto` became."""
    return [*arm_fields(task, arm), *numbers_of(prepared), *elastic_cap_fields(prepared["cap_bytes"])]


def numbers_of(prepared: Line) -> list[str]:
    """Return the numbers that `auto` became, in the form of `--set`: the same for every exact run of the task."""
    return [f"training.micro_batch_size={prepared['micro_batch']}", f"training.reduction_leaves={prepared['leaves']}"]


def timed_run(key: Key, prepared: Line, best: Candidate, go: str) -> Line:
    """Make a whole run on devices of fixed speed. go: name of the command whose runs took turns."""
    static = key.arm == "static"
    settings = static_settings(prepared, best) if static else elastic_settings(TASKS[key.task], prepared, key.arm)
    folder = PLACE / "work" / key.words().replace(" ", "_")
    shutil.rmtree(folder, ignore_errors=True)
    workers = best.workers if static else WORKERS
    _run(TASKS[key.task], key.scale, folder, workers, [f"seed={key.seed}", *settings, *NOT_TIMED])
    figures = _figures(folder)
    shutil.rmtree(folder)
    return {"go": go, "placement": best.name if static else "planner", **figures, **circumstances()}


def accuracy_run(key: Key, prepared: Line, device: str, end: float) -> Line | None:
    """Make a whole run of one worker. Placement changes no bit, so this run stands for every placement of the same numerics.

    At `end`, the go's end by the monotonic clock, the run drains, and the next go resumes it with the same bits. Returns None if
    the run drained.
    """
    settings = [*(switches(()) if key.arm == "static" else arm_fields(TASKS[key.task], key.arm)), *numbers_of(prepared)]
    alone = ["placement.workers=1", "placement.worker_cpus=null", f"training.device={device}"]
    folder = PLACE / "work" / f"{key.words()} {device}".replace(" ", "_")
    if RunDirectory(folder).holds_run():
        words = ["resume", str(folder), "--quiet"]
    else:
        words = _words(TASKS[key.task], key.scale, folder, 1, [f"seed={key.seed}", *settings, *alone])
    command = SeparateProcess(FROSTLINE, words, quiet=True, dies_with_us=True)
    if not command.wait(end - time.monotonic()):
        command.interrupt()
    command.end(also=(exit_codes.DRAINED,))
    if RunDirectory(folder).ended_as() != RunStatus.COMPLETED:
        return None
    figures = _figures(folder)
    shutil.rmtree(folder)
    return {**figures, **circumstances(device)}


def _run(task: Task, scale: str, folder: Path, workers: int, settings: Sequence[str]) -> None:
    """Execute `frostline run` on one processor. Raises RuntimeError with the end of its output if it fails."""
    shutil.rmtree(folder, ignore_errors=True)
    words = _words(task, scale, folder, workers, settings)
    try:
        with one_processor():
            SeparateProcess(FROSTLINE, words, quiet=True, dies_with_us=True).end()
    except RunError as failed:
        raise RuntimeError(f"frostline {' '.join(words)}: {failed}") from failed


def _words(task: Task, scale: str, folder: Path, workers: int, settings: Sequence[str]) -> list[str]:
    """Return the command line of a run."""
    words = ["run", "-f", str(task.job), "--out", str(folder), "--quiet", "--workers", str(workers)]
    return words + [item for value in [*task.overrides(scale), *settings] for item in ("--set", value)]


def _figures(folder: Path) -> Line:
    """Return a finished run's figures for its line."""
    found, run = read_figures(folder), read_run(folder)
    ledger = found.ledger
    used = ledger.used if ledger is not None else {}
    total = sum(used.values()) or 1.0
    figures: dict[str, Any] = {
        "seconds": round(found.wall_seconds, 2),
        "training_seconds": round(found.training_seconds, 2),
        "worker_seconds": round(found.worker_seconds, 1),
        "accuracy": found.final.get("accuracy"),
        "loss": found.final.get("loss"),
        "digest": found.digest,
        "steps": run.records[-1].step,
        "micro_batch": found.micro_batch_size,
        "leaves": int(run.job["training"]["reduction_leaves"]),
        "frozen_units": found.freeze_point,
        "units": found.num_units,
        "shapes": list(found.shapes),
        "cache_hits": found.cache_hits,
        "cache_misses": found.cache_misses,
        "over_cap": [event.reason for event in run.events if event.kind == "memory_over_cap"],
        "shares": {name: round(seconds / total, 4) for name, seconds in used.items() if seconds > 0},
    }
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in figures.items()}
