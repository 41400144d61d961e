"""The runs of a sweep, from a job and its varied fields; all are checked before anything starts."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frostline_contract.durable_files import make_folder_durably, replace_durably
from frostline_contract.job import Job, JobError, dump_job, load_job
from frostline_controller.cluster.local.shared_cache import uses_cache
from frostline_controller.local_run.errors import UserMistake
from frostline_controller.local_run.run_folder import new_run_folder
from frostline_controller.python_values import settings_of
from frostline_controller.sweep.directory import SweepDirectory, SweepState, SweptRun
from frostline_controller.sweep.grid import Axis, check_axes, combinations, short_names

NAME_CHARACTERS_MAX = 53
"""The greatest length of a job's name."""
WORKERS = "placement.workers"


@dataclass(frozen=True)
class PlannedRun:
    """One planned run: the varied fields as given, and the checked job."""

    values: dict[str, Any]
    job: Job


def planned_runs(
    job_file: str, overrides: Sequence[str], axes: Sequence[Axis], workers: int | None, side_by_side: int
) -> list[PlannedRun]:
    """Return a checked job for each combination of values.

    Args:
        job_file: path of the job file.
        overrides: `field=value` for every run.
        axes: the varied fields.
        workers: of all runs together, shared out evenly where the runs themselves do not vary them. None: as the job has them.
        side_by_side: runs at a time.

    Raises:
        UserMistake: the job, a value, or the number of workers is invalid, or two runs are the same.
    """
    check_axes(axes, overrides)
    check_workers(workers, side_by_side, {})
    shared_out = [] if workers is None or _says(WORKERS, axes, overrides) else [f"{WORKERS}={workers // side_by_side}"]
    runs = []
    for number, values in enumerate(combinations(axes), start=1):
        job = _job(job_file, [*overrides, *shared_out], values)
        stem = job.name[: NAME_CHARACTERS_MAX - len(f"-{number}")].rstrip("-")
        runs.append(PlannedRun(_resolved(job, values), job.model_copy(update={"name": f"{stem}-{number}"})))
        check_workers(workers, side_by_side, {said(values): job.placement.workers})
    _check_different(runs)
    roots = {os.path.normpath(run.job.checkpoint_root(Path(run.job.name))) for run in runs}
    if len(roots) < len(runs):
        uri = runs[0].job.checkpoint.uri
        raise UserMistake(f"checkpoint.uri is {uri!r}: all runs of the sweep would write there; name one relative to the run")
    return runs


def check_workers(workers: int | None, side_by_side: int, needed: Mapping[str, int]) -> None:
    """Raise UserMistake where the runs of a sweep do not fit into its workers.

    Args:
        workers: of all runs together; None: as many as the runs side by side have.
        side_by_side: runs at a time.
        needed: the workers of each run, by its values in words.
    """
    if side_by_side < 1:
        raise UserMistake(f"--side-by-side {side_by_side}: no run would ever start; give 1 or more")
    if workers is None:
        return
    if workers < side_by_side:
        raise UserMistake(f"--workers {workers}: too few for --side-by-side {side_by_side}; raise it, or run fewer at a time")
    largest = max(needed, key=lambda run: needed[run], default=None)
    if largest is not None and needed[largest] > workers:
        raise UserMistake(f"--workers {workers}: the run with {largest} needs {needed[largest]}; raise it")


def _check_different(runs: Sequence[PlannedRun]) -> None:
    """Raise UserMistake where two runs are the same: a learning rate of 1 is one of 1.0."""
    first: dict[str, int] = {}
    for number, run in enumerate(runs, start=1):
        other = first.setdefault(said(run.values), number)
        if other != number:
            raise UserMistake(f"--vary: runs {other} and {number} would both have {said(run.values)}; give each value once")


def sweep_name(job_file: str, overrides: Sequence[str], runs: Sequence[PlannedRun]) -> str:
    """Return the name of the job itself; of the first run where the job is invalid without the varied values."""
    try:
        return load_job(job_file, list(overrides)).name
    except JobError:
        return runs[0].job.name.removesuffix("-1")


def new_sweep_folder(name: str, out: str | None) -> Path:
    """Make the folder of a new sweep: `out`, or runs/sweep-<name>, runs/sweep-<name>-2, ... Raises UserMistake."""
    if out is not None and SweepDirectory(out).holds_sweep():
        raise UserMistake(f"{out} holds another sweep; go on with it by `frostline resume {out}`, or give another --out")
    return new_run_folder(f"sweep-{name}", out)


def made_sweep(
    runs: Sequence[PlannedRun], axes: Sequence[Axis], *, name: str, folder: Path, job_file: str, workers: int | None,
    side_by_side: int,
) -> tuple[SweepDirectory, SweepState]:  # fmt: skip
    """Write the directory of a new sweep: the job of each run, and a state in which nothing has started yet. Raises OSError.

    Args:
        runs: the runs, from `planned_runs`.
        axes: the varied fields.
        name: the sweep's name.
        folder: the sweep's directory.
        job_file: absolute path of the job file.
        workers: the most workers of all runs together; None: as many as the runs side by side have.
        side_by_side: the most runs at a time.
    """
    places = SweepDirectory(folder)
    named = _folder_names(runs)
    swept = [
        SweptRun(number, folder, run.values, run.job.placement.workers)
        for number, (folder, run) in enumerate(zip(named, runs, strict=True), start=1)
    ]
    make_folder_durably(places.jobs)
    for one, run in zip(swept, runs, strict=True):
        replace_durably(places.job_of(one), dump_job(run.job))
    state = SweepState(
        name=name,
        axes=tuple(axes),
        runs=tuple(swept),
        workers=workers,
        side_by_side=side_by_side,
        shares_cache=any(uses_cache(run.job) for run in runs),
        job_file=job_file,
    )
    places.write(state)
    return places, state


def _says(field: str, axes: Sequence[Axis], overrides: Sequence[str]) -> bool:
    """Whether a field is varied, or given by --set."""
    return any(axis.field == field for axis in axes) or any(one.partition("=")[0] == field for one in overrides)


def _job(job_file: str, overrides: Sequence[str], values: dict[str, Any]) -> Job:
    try:
        return load_job(job_file, [*overrides, *settings_of(values)])
    except JobError as error:
        text = str(error)
    try:
        load_job(job_file, list(overrides))
    except JobError as error:
        if str(error) == text:  # the mistake does not depend on a varied field
            raise UserMistake(text) from None
    mistakes = [line.strip() for line in text.splitlines()]  # the first of several lines has the number of mistakes
    raise UserMistake(f"--vary {said(values)}: {'; '.join(mistakes[1:] or mistakes)}")


def said(values: Mapping[str, Any]) -> str:
    """Return the values of a run as the user would give them by --set."""
    return " ".join(settings_of(values))


def _resolved(job: Job, values: dict[str, Any]) -> dict[str, Any]:
    """Return the varied fields with the values of the checked job: a learning rate of 1 is 1.0 there."""
    every = job.model_dump(mode="json")
    resolved = {}
    for field in values:
        place: Any = every
        for part in field.split("."):
            place = place[part]
        resolved[field] = place
    return resolved


def _folder_names(runs: Sequence[PlannedRun]) -> list[str]:
    """Return each run's number and values as the name of a folder: `02-learning_rate-0.0001-seed-0`."""
    shown, digits = short_names(runs[0].values), len(str(len(runs)))
    named = []
    for number, run in enumerate(runs, start=1):
        words = "-".join(f"{shown[field]}-{value}" for field, value in run.values.items())
        named.append(f"{number:0{digits}d}-{re.sub(r'[^A-Za-z0-9._]+', '-', words)[:80].strip('-')}")
    return named
