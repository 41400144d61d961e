"""A prepared run from its start to its end: all its processes on this machine, its progress, and how it ended."""

import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from frostline_contract.job import Job
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import ENDED, RunStatus
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.control import OperatorClient
from frostline_controller.local_run.interrupts import Interrupts, interrupts
from frostline_controller.local_run.output import complain
from frostline_controller.local_run.prepared_run import PreparedRun
from frostline_controller.local_run.progress import ProgressReader
from frostline_controller.local_run.starting_checks import how_to_go_on
from frostline_controller.local_run.stopping import StopRequest
from frostline_controller.local_run.terminal import Terminal, open_terminal

if TYPE_CHECKING:
    from frostline_controller.cluster.local.cluster import ClusterFailure
    from frostline_controller.local_run.services import LocalServices

POLL_SECONDS = 0.5
LEAVE_SECONDS = 10.0
"""The longest wait for processes to exit by themselves after the result is stored, in seconds."""
ANSWER_SECONDS = 20.0
"""The longest wait of a stop for the controller's answer, in seconds: longer than a new controller takes to start."""


def watch(prepared: PreparedRun, quiet: bool, report: bool) -> int:
    """Run the services of a run directory until the run has ended; return the exit status.

    Args:
        prepared: the run.
        quiet: no progress on the terminal.
        report: whether report.html is drawn at the end.
    """
    from frostline_controller.local_run.services import LocalServices

    folder, job = prepared.folder, prepared.job
    services = LocalServices(folder, job, prepared.replay, prepared.resume, prepared.shared_cache)
    failure: ClusterFailure | None = None
    with closing(OperatorClient(folder)) as client, interrupts() as asked:
        terminal = open_terminal(quiet)
        if not quiet:
            terminal.say(f"run directory {folder}")
        reader = ProgressReader(folder, client, skip_events=bool(prepared.resume))
        try:
            services.start()
            failure = _follow(services, reader, client, terminal, asked)
        finally:
            # First of all, end every process of the run. A user who has asked twice does not want to wait for graceful ends.
            services.stop(grace_seconds=0.5 if asked.count > 1 else 5.0)
            terminal.close()
            if reader.last_status is not None:
                with suppress(OSError):
                    RunDirectory(folder).write_status(reader.last_status, time.time())
    return _finish(folder, job, asked.count > 1, report, failure, terminal)


def _follow(
    services: "LocalServices", reader: ProgressReader, client: OperatorClient, terminal: Terminal, asked: Interrupts
) -> "ClusterFailure | None":
    """Show progress until the run has ended and its processes have left, or the user has asked twice to stop.

    Args:
        services: the run's services, which are kept going meanwhile.
        reader: reads the run directory.
        client: the connection to the controller, for the request to drain.
        terminal: where the progress is shown.
        asked: how often the user has asked to stop.

    Returns:
        The process that did not stay up; None: there is none. A run that cannot go on ends by its result, or here where it leaves
        none.
    """
    stop = StopRequest(client, terminal.say)
    ended_at: float | None = None
    failed_at: float | None = None
    while asked.count < 2:
        progress = reader.poll()
        terminal.show(progress)
        for note in services.notes():
            terminal.say(note)
        services.advance()
        if asked.count == 1:
            stop.advance(progress)
            if stop.silent_seconds > ANSWER_SECONDS:
                terminal.say(f"no controller has answered for {ANSWER_SECONDS:g} s; stopping at once")
                asked.count += 1
        if progress.state in ENDED:
            ended_at = ended_at or time.monotonic()
            if services.all_left() or time.monotonic() - ended_at > LEAVE_SECONDS:
                return services.failure()
        elif services.failure() is not None:
            failed_at = failed_at or time.monotonic()
            if services.failure().leaves_no_result or time.monotonic() - failed_at > LEAVE_SECONDS:
                return services.failure()
        asked.sleep(0.1 if ended_at else POLL_SECONDS)
    return None


def _finish(folder: Path, job: Job, at_once: bool, report: bool, failure: "ClusterFailure | None", terminal: Terminal) -> int:
    """Write the report, print how the run ended, and return the exit status, which a failed drawing does not change.

    Args:
        folder: the run directory.
        job: the run's job.
        at_once: whether the user has asked twice to stop.
        report: whether report.html is drawn.
        failure: the service or pod that did not stay up; None: there is none.
        terminal: where the end is printed.
    """
    from frostline_controller.report.data import read_run
    from frostline_controller.report.tensorboard import summary_line, write_tensorboard

    run_data = read_run(folder)
    status = RunDirectory(folder).ended_as()
    # A user who has asked twice wants the command to end at once, unless the run was faster and has ended normally.
    at_once = at_once and not status
    if run_data.records and not at_once:
        try:
            write_tensorboard(folder)
            if report:
                from frostline_controller.report.build import build_report  # imported here, since drawing imports matplotlib

                terminal.say(f"report {build_report(folder)}")
        except (OSError, ValueError, KeyboardInterrupt) as error:
            why = str(error) or "interrupted"
            complain(f"the report could not be written ({why}); `frostline report {folder}` does it at any time")
    if status == RunStatus.COMPLETED:
        terminal.say(summary_line(run_data))
        return exit_codes.DONE
    if status in (RunStatus.FAILED, RunStatus.CANCELLED) or failure is not None:
        message = str(run_data.result.get("message", "")) or (failure.message if failure else "")
        complain(f"{summary_line(run_data)}: {message}\nlogs: {folder / 'logs'}")
        mistake = run_data.result.get("user_mistake") or (failure is not None and failure.user_mistake)
        if run_data.result.get("crash_loop"):
            return exit_codes.CRASH_LOOP
        return exit_codes.USER_MISTAKE if mistake else exit_codes.FAILED
    terminal.say(f"stopped; go on with: {how_to_go_on(folder, job)}")
    return exit_codes.INTERRUPTED if at_once else exit_codes.DRAINED
