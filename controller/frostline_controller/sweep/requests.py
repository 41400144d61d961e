"""Requests to a sweep, as typed values: many runs of one job over one cache, or a sweep that goes on.

`frostline sweep` carries a request out in its own process; the Python API writes it as text to a process of its own.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from frostline_contract.job import Job
from frostline_contract.run_status import RunStatus
from frostline_controller.cluster.local.measuring import settled_here
from frostline_controller.cluster.local.shared_cache import check_redis_server
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.errors import UserMistake
from frostline_controller.local_run.interrupts import interrupts
from frostline_controller.local_run.output import complain
from frostline_controller.local_run.request import Request
from frostline_controller.local_run.run_lock import owned
from frostline_controller.local_run.separate_process import SeparateProcess
from frostline_controller.local_run.terminal import open_terminal
from frostline_controller.sweep.directory import OVER, SweepDirectory, SweepState
from frostline_controller.sweep.grid import Axis, overlap
from frostline_controller.sweep.page import write_page
from frostline_controller.sweep.planning import (
    PlannedRun,
    check_workers,
    made_sweep,
    new_sweep_folder,
    planned_runs,
    said,
    sweep_name,
)
from frostline_controller.sweep.running import SweepRunner, as_it_stands
from frostline_controller.sweep.wording import table_of, table_text

PROCESS = "frostline_controller.sweep"
"""The module whose process carries out the request on its standard input."""


class NewSweep(Request):
    """A new sweep.

    Attributes:
        job_file: path of the job file.
        overrides: `field=value` for every run.
        axes: the varied fields; the last one changes fastest.
        out: the sweep's directory, new or empty; None: runs/sweep-<name>, runs/sweep-<name>-2, ...
        workers: of all runs together; None: as the job has them.
        side_by_side: runs at a time.
    """

    kind: Literal["sweep"] = "sweep"
    job_file: str
    overrides: tuple[str, ...] = ()
    axes: tuple[Axis, ...]
    out: str | None = None
    workers: int | None = Field(None, ge=1)
    side_by_side: int = Field(1, ge=1)


class ResumedSweep(Request):
    """A sweep that goes on with the runs that have not ended. Completed runs are not run again.

    Attributes:
        folder: the sweep's directory, as the user names it.
        workers: of all runs together; None: as before. A run keeps its own number, which has to fit.
        side_by_side: runs at a time; None: as before.
        retry_failed: go on also with runs that failed or were cancelled.
    """

    kind: Literal["resume"] = "resume"
    folder: str
    workers: int | None = Field(None, ge=1)
    side_by_side: int | None = Field(None, ge=1)
    retry_failed: bool = False


SweepRequest = NewSweep | ResumedSweep
_REQUEST: TypeAdapter[SweepRequest] = TypeAdapter(Annotated[SweepRequest, Field(discriminator="kind")])


def read_request(text: str) -> SweepRequest:
    """Return the request with this text. Raises ValueError."""
    return _REQUEST.validate_python(json.loads(text))


def in_a_process(request: SweepRequest) -> SeparateProcess:
    """Start a process that carries the request out; its standard output is kept where the request is quiet."""
    return SeparateProcess(PROCESS, request=request.text, called="frostline sweep", quiet=request.quiet)


def carry_out(request: SweepRequest) -> int:
    """Run the sweep from this process and return when no run is left or the user has asked to stop; return the exit status.

    Raises UserMistake where the sweep cannot be started.
    """
    return _resumed(request) if isinstance(request, ResumedSweep) else _started(request)


def _started(request: NewSweep) -> int:
    runs = _planned(request, request.overrides)
    for run in runs:
        check_redis_server(run.job)
    overrides = list(request.overrides)
    if settings := _settled(request.axes, _most_demanding(runs)):
        overrides += settings
        runs = _planned(request, overrides)
    name = sweep_name(request.job_file, overrides, runs)
    folder = new_sweep_folder(name, request.out)
    with owned(folder, _seen(folder)):
        job_file = str(Path(request.job_file).resolve())
        places, state = made_sweep(
            runs, request.axes, name=name, folder=folder, job_file=job_file, workers=request.workers,
            side_by_side=request.side_by_side,
        )  # fmt: skip
        return _run(places, state, request.quiet, request.report)


def _planned(request: NewSweep, overrides: Sequence[str]) -> list[PlannedRun]:
    return planned_runs(request.job_file, overrides, request.axes, request.workers, request.side_by_side)


def _most_demanding(runs: Sequence[PlannedRun]) -> Job:
    """Return the job whose numbers suit all runs: that with the most workers, among these that with the smallest batch.

    Fewer leaves could not be shared out among the most workers, and the smallest batch could not be cut into more.
    """
    return max((run.job for run in runs), key=lambda job: (job.placement.workers, -job.training.batch_size))


def _settled(axes: Sequence[Axis], job: Job) -> list[str]:
    """Settle the `auto` fields that no axis varies, once for all runs; separate measurements might differ, and then runs share no
    cached value.

    Args:
        axes: the varied fields.
        job: the job of the run by which the fields are settled.
    """
    names = [name for name in job.training.automatic if not any(overlap(axis.field, f"training.{name}") for axis in axes)]
    settled = settled_here(job) if names else None
    return [f"training.{name}={getattr(settled, name)}" for name in names] if settled is not None else []


def _resumed(request: ResumedSweep) -> int:
    """Go on with the runs that have not ended. Completed runs are not run again, failed runs only where that is asked for."""
    directory, places = request.folder, SweepDirectory(Path(request.folder).resolve())
    if not places.holds_sweep():
        raise UserMistake(f"{directory} is no sweep: it has no {places.state.name}; give the directory of one")
    with owned(places.path, _seen(places.path)):
        kept = places.read()
        runs = [as_it_stands(run, places.run_of(run)) for run in kept.runs]
        kept_as_they_are = (RunStatus.COMPLETED,) if request.retry_failed else OVER
        again = [
            run if run.state in kept_as_they_are else replace(run, state=RunStatus.WAITING, exit_code=None, message="")
            for run in runs
        ]
        state = replace(
            kept,
            runs=tuple(again),
            workers=request.workers or kept.workers,
            side_by_side=request.side_by_side or kept.side_by_side,
        )
        if all(run.over for run in again):
            failed = state.count(RunStatus.FAILED, RunStatus.CANCELLED)
            how = f"; {failed} failed: `frostline sweep --resume {directory} --retry-failed` tries them again" if failed else ""
            raise UserMistake(f"{directory}: every run has ended{how or '; there is nothing to go on with'}")
        check_workers(state.workers, state.side_by_side, {said(run.values): run.workers for run in again if not run.over})
        return _run(places, state, request.quiet, request.report)


def _run(places: SweepDirectory, state: SweepState, quiet: bool, report: bool) -> int:
    terminal = open_terminal(quiet=True)  # one line for each message; goes on after its reader is gone
    say = terminal.say
    log = (lambda text: None) if quiet else say
    log(_beginning(places, state))
    with interrupts() as asked:
        state = SweepRunner(places, state, log, report).run(asked)
    try:
        write_page(places, state)
    except OSError as error:
        complain(f"the page could not be written ({error}); `frostline report {places.path}` writes it again")
    say(table_text(table_of(state)))
    say(f"page {places.page}")
    return _exit_code(places, state, asked.count > 1)


def _exit_code(places: SweepDirectory, state: SweepState, at_once: bool) -> int:
    """Print the remaining work, and return the exit status."""
    failed = [run for run in state.runs if run.state in (RunStatus.FAILED, RunStatus.CANCELLED)]
    for run in failed:
        complain(f"{places.run_of(run).path}: {run.state}: {run.message}")
    if left := len(state.runs) - state.count(RunStatus.COMPLETED) - len(failed):
        complain(f"stopped with {left} of {len(state.runs)} run(s) to go; go on with: frostline resume {places.path}")
        return exit_codes.INTERRUPTED if at_once else exit_codes.DRAINED
    return exit_codes.FAILED if failed else exit_codes.DONE


def _beginning(places: SweepDirectory, state: SweepState) -> str:
    over = sum(run.over for run in state.runs)
    ended = f", {over} of which have ended" if over else ""
    cache = "one cache for them all" if state.shares_cache else "no cache"
    workers = f", {state.workers} worker(s) together" if state.workers is not None else ""
    return f"sweep {places.path}: {len(state.runs)} runs{ended}, at most {state.side_by_side} at a time{workers}; {cache}"


def _seen(folder: Path) -> str:
    return f"see {SweepDirectory(folder).state}"
