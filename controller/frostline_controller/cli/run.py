"""`frostline run` and `frostline resume`: start everything on this machine, show it, end it in every case."""

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from frostline_contract.job import Job, JobError, load_job
from frostline_controller.cli import exit_codes
from frostline_controller.cli.control import ControlClient
from frostline_controller.cli.errors import CommandError, NoRun, UserMistake
from frostline_controller.cli.progress import Progress, ProgressReader
from frostline_controller.cli.resuming import resumed_job
from frostline_controller.cli.run_folder import (
    find_run_folder,
    finished_status,
    new_run_folder,
    read_job,
    write_run_folder,
)
from frostline_controller.cli.status import save_status
from frostline_controller.cli.terminal import Terminal, open_terminal

if TYPE_CHECKING:
    from frostline_controller.cli.services import LocalServices
    from frostline_controller.cluster.local_cluster import ClusterFailure

POLL_SECONDS = 0.5
ENDED = ("completed", "drained", "failed", "cancelled")
LEAVE_SECONDS = 10.0
"""How long processes may take to exit by themselves after the result is stored."""


def run(arguments: argparse.Namespace) -> int:
    """Start a new run in a folder of its own and stay with it until it ends."""
    workers = [f"placement.workers={arguments.workers}"] if arguments.workers else []
    try:
        job = load_job(arguments.file, [*arguments.overrides, *workers])
    except JobError as error:
        raise UserMistake(str(error)) from None
    replay = Path(arguments.replay).resolve() if arguments.replay else None
    if replay is not None and not (replay / "plans.jsonl").exists():
        raise UserMistake(f"--replay {replay}: holds no plans.jsonl; give the directory of a run that has trained")
    folder = new_run_folder(job.name, arguments.out)
    facts = {"job_file": str(Path(arguments.file).resolve()), "started_at": time.time(), "replay": str(replay or "")}
    write_run_folder(folder, job, facts)
    return watch(folder, job, replay=replay, resume=(), quiet=arguments.quiet, report=not arguments.no_report)


def resume(arguments: argparse.Namespace) -> int:
    """Go on with a run from its newest checkpoint, perhaps with other live fields."""
    folder = find_run_folder(arguments.dir)
    status = finished_status(folder)
    if status == "completed":
        raise UserMistake(f"{folder} has completed; there is nothing to go on with")
    with closing(ControlClient(folder)) as client:
        if _answers(client):
            raise UserMistake(f"{folder} is running; see it with `frostline status {folder} --watch`")
    said = ("--resume", *(["--accept-numerics"] if arguments.accept_numerics else []))
    job = resumed_job(read_job(folder), arguments.overrides, arguments.workers)
    replay = _replay_of(folder)
    write_run_folder(folder, job, {**_facts(folder), "resumed_at": time.time()})
    # The earlier ending is over; what it said is in events.jsonl.
    (folder / "result.json").unlink(missing_ok=True)
    return watch(folder, job, replay=replay, resume=said, quiet=arguments.quiet, report=not arguments.no_report)


def watch(folder: Path, job: Job, replay: Path | None, resume: tuple[str, ...], quiet: bool, report: bool) -> int:
    """Run the services of a run directory until it has ended; returns the exit status.

    resume: what the controller is told once: nothing for a new run, "--resume" and perhaps "--accept-numerics" otherwise.
    report: whether report.html is drawn at the end.
    """
    from frostline_controller.cli.services import LocalServices

    terminal = open_terminal(quiet)
    if not quiet:
        terminal.say(f"run directory {folder}")
    services = LocalServices(folder, job, replay=replay, resume=resume)
    failure: ClusterFailure | None = None
    with closing(ControlClient(folder)) as client, _interrupts() as interrupts:
        reader = ProgressReader(folder, client, skip_events=bool(resume))
        try:
            services.start()
            failure = _follow(services, reader, client, terminal, interrupts)
        finally:
            if reader.last_status is not None:
                save_status(folder, reader.last_status, time.time())
            # Somebody who has asked twice does not want to wait for graceful ends.
            services.stop(grace_seconds=0.5 if interrupts.count > 1 else 5.0)
            terminal.close()
    return _finish(folder, interrupts.count > 1, report, failure)


class _Interrupts:
    """How often the user asked to stop (Ctrl-C or SIGTERM)."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


@contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    interrupts = _Interrupts()
    before = {number: signal.signal(number, interrupts.note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupts
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _follow(
    services: "LocalServices", reader: ProgressReader, client: ControlClient, terminal: Terminal, interrupts: _Interrupts
) -> "ClusterFailure | None":
    """Show progress until the run has ended and its processes have left, or the user has asked twice to stop.

    Returns what did not stay up, if anything: a run that cannot go on ends by its result, or here where it leaves none.
    """
    told_to_drain = False
    ended_at: float | None = None
    failed_at: float | None = None
    while interrupts.count < 2:
        progress = reader.poll()
        terminal.show(progress)
        services.advance()
        if interrupts.count == 1 and not told_to_drain:
            told_to_drain = _drain(client, terminal, progress)
        if progress.state in ENDED:
            ended_at = ended_at or time.monotonic()
            if services.all_left() or time.monotonic() - ended_at > LEAVE_SECONDS:
                return services.failure()
        elif services.failure() is not None:
            failed_at = failed_at or time.monotonic()
            if time.monotonic() - failed_at > LEAVE_SECONDS:
                return services.failure()
        time.sleep(0.1 if ended_at else POLL_SECONDS)
    return None


def _drain(client: ControlClient, terminal: Terminal, progress: Progress) -> bool:
    """Ask the controller to stop at a checkpoint. False where it does not answer yet, to be tried again."""
    if progress.state in ENDED:
        return True
    try:
        client.command("suspend")
    except NoRun:
        return False
    except CommandError as error:
        terminal.say(f"stopping: {error}; press Ctrl-C again to stop at once")
        return True
    terminal.say("stopping at a checkpoint; press Ctrl-C again to stop at once")
    return True


def _finish(folder: Path, at_once: bool, report: bool, failure: "ClusterFailure | None") -> int:
    """Write the report, say how it ended, and return the exit status."""
    from frostline_controller.report.build import build_report
    from frostline_controller.report.data import read_run
    from frostline_controller.report.tensorboard import summary_line, write_tensorboard

    run_data = read_run(folder)
    status = finished_status(folder)
    # Who has asked twice wants to be rid of us, unless the run was faster and has ended as it should.
    at_once = at_once and not status
    if run_data.records and not at_once:
        write_tensorboard(folder)
        if report:
            print(f"report {build_report(folder)}")
    if status == "completed":
        print(summary_line(run_data))
        return exit_codes.DONE
    if status in ("failed", "cancelled") or failure is not None:
        message = str(run_data.result.get("message", "")) or (failure.message if failure else "")
        print(f"frostline: {summary_line(run_data)}: {message}\nlogs: {folder / 'logs'}", file=sys.stderr)
        mistake = run_data.result.get("user_mistake") or (failure is not None and failure.user_mistake)
        if run_data.result.get("crash_loop"):
            return exit_codes.CRASH_LOOP
        return exit_codes.USER_MISTAKE if mistake else exit_codes.FAILED
    print(f"stopped; go on with: frostline resume {folder}")
    return exit_codes.INTERRUPTED if at_once else exit_codes.DRAINED


def _answers(client: ControlClient) -> bool:
    try:
        client.status(deadline_seconds=1.0)
    except CommandError:
        return False
    return True


def _facts(folder: Path) -> dict[str, object]:
    from frostline_controller.report.data import read_json

    return {key: value for key, value in read_json(folder / "run.json").items() if key != "version"}


def _replay_of(folder: Path) -> Path | None:
    replay = str(_facts(folder).get("replay", ""))
    return Path(replay) if replay else None
