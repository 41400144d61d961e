"""`frostline run` and `frostline resume`: their arguments become a request, which is carried out in this process."""

import argparse
from pathlib import Path

from frostline_contract.job import JobError, load_job
from frostline_controller.local_run.errors import UserMistake
from frostline_controller.local_run.requests import NewRun, ResumedRun, carry_out
from frostline_controller.local_run.run_folder import find_run_folder
from frostline_controller.sweep.directory import sweep_in


def run(arguments: argparse.Namespace) -> int:
    """Start a new run in a folder of its own and follow it until it ends."""
    workers = [f"placement.workers={arguments.workers}"] if arguments.workers else []
    try:
        job = load_job(arguments.file, [*arguments.overrides, *workers])
    except JobError as error:
        raise UserMistake(str(error)) from None
    request = NewRun(
        job=job, job_file=Path(arguments.file).resolve(), out=arguments.out, shared_cache=_absolute(arguments.shared_cache),
        replay=_absolute(arguments.replay), quiet=arguments.quiet, report=not arguments.no_report,
    )  # fmt: skip
    return carry_out(request)


def resume(arguments: argparse.Namespace) -> int:
    """Go on with a run from its newest checkpoint, perhaps with other live fields; or with a sweep."""
    if sweep_in(arguments.dir):
        from frostline_controller.cli.sweep import resumed

        if arguments.overrides or arguments.accept_numerics or arguments.from_scratch or arguments.shared_cache:
            raise UserMistake(f"{arguments.dir} is a sweep: resume one of its runs with these options, or the sweep without them")
        return resumed(arguments.dir, arguments)
    request = ResumedRun(
        folder=find_run_folder(arguments.dir), overrides=tuple(arguments.overrides), workers=arguments.workers,
        accept_numerics=arguments.accept_numerics, from_scratch=arguments.from_scratch,
        shared_cache=_absolute(arguments.shared_cache), quiet=arguments.quiet, report=not arguments.no_report,
    )  # fmt: skip
    return carry_out(request)


def _absolute(given: str | None) -> Path | None:
    return Path(given).resolve() if given else None
