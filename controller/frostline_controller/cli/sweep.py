"""`frostline sweep`: many runs of one job over one cache; also resumes a sweep, for `frostline resume` too."""

import argparse
from dataclasses import replace
from pathlib import Path

from frostline_contract.job import JobError, load_job
from frostline_contract.run_status import RunStatus
from frostline_controller.cluster.local.measuring import settings_of, settled_here
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.errors import UserMistake
from frostline_controller.local_run.interrupts import interrupts
from frostline_controller.local_run.output import complain
from frostline_controller.local_run.run_lock import owned
from frostline_controller.local_run.terminal import open_terminal
from frostline_controller.sweep.directory import OVER, SweepDirectory, SweepState
from frostline_controller.sweep.grid import parse_axis
from frostline_controller.sweep.page import write_page
from frostline_controller.sweep.planning import made_sweep, new_sweep_folder, planned_runs, sweep_name
from frostline_controller.sweep.running import SweepRunner, as_it_stands
from frostline_controller.sweep.telling import table_of, table_text


def sweep(arguments: argparse.Namespace) -> int:
    """Plan a sweep and run it, or go on with one."""
    if arguments.resume is not None:
        given = [("-f", arguments.file), ("--vary", arguments.vary), ("--set", arguments.overrides), ("--out", arguments.out)]
        for option, value in given:
            if value:
                raise UserMistake(f"{option}: a sweep that goes on keeps its jobs; leave it out, or start another sweep")
        return resumed(arguments.resume, arguments)
    if arguments.file is None:
        raise UserMistake("-f JOB is missing: name the job file, or a sweep to go on with by --resume DIR")
    if arguments.retry_failed:
        raise UserMistake("--retry-failed: says something with --resume DIR only")
    arguments.overrides = [*arguments.overrides, *_settled(arguments)]
    axes = [parse_axis(text) for text in arguments.vary]
    side_by_side = arguments.side_by_side or 1
    runs = planned_runs(arguments.file, arguments.overrides, axes, arguments.workers, side_by_side)
    name = sweep_name(arguments.file, arguments.overrides, runs)
    folder = new_sweep_folder(name, arguments.out)
    with owned(folder, _seen(folder)):
        job_file = str(Path(arguments.file).resolve())
        places, state = made_sweep(
            runs, axes, name=name, folder=folder, job_file=job_file, workers=arguments.workers, side_by_side=side_by_side
        )
        return _run(places, state, arguments.quiet, not arguments.no_report)


def _settled(arguments: argparse.Namespace) -> list[str]:
    """Settle the job's `auto` fields once for all runs; separate measurements might differ, and then runs share no cached
    value."""
    try:
        job = load_job(arguments.file, arguments.overrides)
    except JobError as error:
        raise UserMistake(str(error)) from None
    settled = settled_here(job)
    return settings_of(job, settled) if settled is not None else []


def resumed(directory: str, arguments: argparse.Namespace) -> int:
    """Go on with the runs that have not ended. Completed runs are not run again, failed runs only with --retry-failed."""
    places = SweepDirectory(Path(directory).resolve())
    if not places.holds_sweep():
        raise UserMistake(f"{directory} is no sweep: it has no {places.state.name}; give the directory of one")
    retry = getattr(arguments, "retry_failed", False)
    with owned(places.path, _seen(places.path)):
        kept = places.read()
        runs = [as_it_stands(run, places.run_of(run)) for run in kept.runs]
        kept_as_they_are = (RunStatus.COMPLETED,) if retry else OVER
        again = [
            run if run.state in kept_as_they_are else replace(run, state=RunStatus.WAITING, exit_code=None, message="")
            for run in runs
        ]
        state = replace(
            kept,
            runs=tuple(again),
            workers=arguments.workers or kept.workers,
            side_by_side=getattr(arguments, "side_by_side", None) or kept.side_by_side,
        )
        if all(run.over for run in again):
            failed = state.count(RunStatus.FAILED, RunStatus.CANCELLED)
            how = f"; {failed} failed: `frostline sweep --resume {directory} --retry-failed` tries them again" if failed else ""
            raise UserMistake(f"{directory}: every run has ended{how or '; there is nothing to go on with'}")
        return _run(places, state, arguments.quiet, not arguments.no_report)


def _run(places: SweepDirectory, state: SweepState, quiet: bool, report: bool) -> int:
    terminal = open_terminal(quiet=True)  # one line for each message; goes on after its reader is gone
    say = terminal.say
    tell = (lambda text: None) if quiet else say
    tell(_beginning(places, state))
    with interrupts() as asked:
        state = SweepRunner(places, state, tell, report).run(asked)
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
