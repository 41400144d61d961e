"""`frostline sweep`: its arguments become a request, which is carried out in this process; `frostline resume` asks here too."""

import argparse

from frostline_controller.local_run.errors import UserMistake
from frostline_controller.sweep.grid import parse_axis
from frostline_controller.sweep.requests import NewSweep, ResumedSweep, carry_out


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
    request = NewSweep(
        job_file=arguments.file, overrides=tuple(arguments.overrides), axes=tuple(parse_axis(text) for text in arguments.vary),
        out=arguments.out, workers=arguments.workers, side_by_side=arguments.side_by_side or 1, quiet=arguments.quiet,
        report=not arguments.no_report,
    )  # fmt: skip
    return carry_out(request)


def resumed(directory: str, arguments: argparse.Namespace) -> int:
    """Go on with the runs that have not ended. Completed runs are not run again, failed runs only with --retry-failed."""
    request = ResumedSweep(
        folder=directory, workers=arguments.workers, side_by_side=getattr(arguments, "side_by_side", None),
        retry_failed=getattr(arguments, "retry_failed", False), quiet=arguments.quiet, report=not arguments.no_report,
    )  # fmt: skip
    return carry_out(request)
