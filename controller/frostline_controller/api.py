"""Frostline from Python: each function does what the command of the same name does, over the same library.

    from frostline_controller import api

    done = api.run("examples/image_classification/digits.yaml", out="runs/mine", workers=4, overrides={"training.epochs": 6})
    print(done.final["accuracy"], done.digest)
    api.verify(done.directory)

A run lives in processes of its own and leaves a directory: `start` returns a `Run` while it trains, `run` waits for it
(docs/adr/0020-a-run-is-a-process.md). A `RunResult` is a view of that directory, so it can be had again at any time by
`api.result(directory)`. No function here needs torch; docs/python-api.md shows them all at work.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml

from frostline_contract.job import Job, dump_job, load_job, write_yaml
from frostline_contract.run_directory import RunDirectory
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.control import OperatorClient
from frostline_controller.local_run.requests import NewRun, ResumedRun, RunRequest, in_a_process
from frostline_controller.local_run.run_folder import find_run_folder, new_run_folder
from frostline_controller.local_run.separate_process import JobMistake, RunError, SeparateProcess, mistakes
from frostline_controller.local_run.status import read_status
from frostline_controller.planner.forecast import forecast
from frostline_controller.python_values import settings_of, whole_number, whole_numbers
from frostline_controller.run_result import RunResult
from frostline_controller.sweep.grid import checked_axis
from frostline_controller.sweep.planning import new_sweep_folder, planned_runs, sweep_name
from frostline_controller.sweep.requests import NewSweep, ResumedSweep, SweepRequest
from frostline_controller.sweep.requests import in_a_process as sweep_in_a_process
from frostline_controller.sweep.result import SweepResult

__all__ = [
    "JobLike", "JobMistake", "Run", "RunError", "RunResult", "SweepResult", "plan", "result", "resume", "resume_sweep", "run",
    "start", "status", "sweep", "verify",
]  # fmt: skip

JobLike = Job | Mapping[str, Any] | str | Path
"""A checked Job, a mapping as a job file holds it, or the path of a job file. Relative paths in a mapping are relative to the
working directory, those in a file to the file."""


class Run:
    """A run that trains in separate processes.

    Attributes:
        directory: the run directory; its files show the progress.
    """

    def __init__(self, directory: Path, request: RunRequest) -> None:
        self.directory = directory
        self.process = in_a_process(request, keep_output=request.quiet)

    @property
    def running(self) -> bool:
        """Whether the run's process has not ended."""
        return self.process.running

    def status(self) -> dict[str, Any]:
        """Return the status, as the function `status` does."""
        return status(self.directory)

    def suspend(self) -> str:
        """Let the run stop at a checkpoint; return the controller's answer. Raises RunError where no controller answers."""
        return _steer(self.directory, "suspend")

    def cancel(self) -> str:
        """Let the run end at a checkpoint; return the controller's answer. Raises RunError where no controller answers."""
        return _steer(self.directory, "cancel")

    def wait(self) -> RunResult:
        """Wait until the run has ended, or was drained (status "suspended"). Ctrl-C drains it. Raises JobMistake, RunError."""
        self.process.end(also=(exit_codes.DRAINED,))
        return RunResult(self.directory)


def start(
    job: JobLike,
    *,
    out: str | Path | None = None,
    workers: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    replay: str | Path | None = None,
    quiet: bool = True,
    report: bool = True,
) -> Run:
    """Train a job on this machine, as `frostline run` does, and return while the run trains.

    Args:
        job: the job to train.
        out: the run directory, new or empty; None: runs/<name>, runs/<name>-2, ...
        workers: number of worker processes; None: the job's number.
        overrides: dotted fields of the job and their values.
        replay: a run directory whose decisions are followed.
        quiet: no progress on the terminal.
        report: draw report.html at the end.

    Raises:
        JobMistake: the job or the run directory is wrong. Mistakes that are found later are raised by `Run.wait`.
    """
    of_workers = {} if workers is None else {"placement.workers": workers}
    with _job_file(job) as file:
        checked = _checked(file, {**(overrides or {}), **of_workers})
    with mistakes():
        folder = new_run_folder(checked.name, None if out is None else str(out))
    request = NewRun(
        job=checked, job_file=Path(job).resolve() if isinstance(job, str | Path) else None, out=str(folder),
        replay=None if replay is None else Path(replay).resolve(), quiet=quiet, report=report,
    )  # fmt: skip
    run = Run(folder, request)
    run.process.wait_until(RunDirectory(folder).job.exists)  # from here on `status` finds the run
    return run


def run(
    job: JobLike,
    *,
    out: str | Path | None = None,
    workers: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    replay: str | Path | None = None,
    quiet: bool = True,
    report: bool = True,
) -> RunResult:
    """Train a job on this machine and return when it has ended: `start`, which explains the arguments, and `Run.wait`.

    A run that was drained (Ctrl-C, suspend) returns too, with status "suspended". Raises JobMistake and RunError.
    """
    return start(job, out=out, workers=workers, overrides=overrides, replay=replay, quiet=quiet, report=report).wait()


def resume(
    directory: str | Path,
    *,
    workers: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    from_scratch: bool = False,
    quiet: bool = True,
    report: bool = True,
) -> RunResult:
    """Go on with the stopped run in `directory`, as `frostline resume` does; return at its end. Raises JobMistake, RunError.

    Args:
        workers: number of worker processes; None: as before.
        overrides: live fields and their values. A fixed field is refused.
        from_scratch: train again from step 0 where no checkpoint of the run is left; without it such a run is refused.
        quiet, report: as in `start`.
    """
    with mistakes():
        folder = find_run_folder(str(directory))
        request = ResumedRun(
            folder=folder, overrides=tuple(settings_of(overrides or {})), workers=workers, from_scratch=from_scratch, quiet=quiet,
            report=report,
        )  # fmt: skip
    return Run(folder, request).wait()


def sweep(
    job: JobLike,
    vary: Mapping[str, Sequence[Any]],
    *,
    out: str | Path | None = None,
    workers: int | None = None,
    side_by_side: int = 1,
    overrides: Mapping[str, Any] | None = None,
    quiet: bool = True,
    report: bool = True,
) -> SweepResult:
    """Train a job once for every combination of varied fields, as `frostline sweep` does; return when all runs have ended.

    A failed run ends no other run and has the state failed. A sweep that was stopped (Ctrl-C) returns too, with runs left.

    Args:
        job: the job to train.
        vary: dotted fields of the job, each with its values in order; the last field changes fastest.
        out: the sweep's directory, new or empty; None: runs/sweep-<name>, runs/sweep-<name>-2, ...
        workers: worker processes of all runs together; None: the job's number, for each run.
        side_by_side: runs at a time.
        overrides: dotted fields and their values, for every run.
        quiet: no progress on the terminal.
        report: draw each run's report.html.

    Raises:
        JobMistake: the job, a value or the directory is wrong.
        RunError: the sweep itself failed.
    """
    with _job_file(job) as file:
        with mistakes():
            axes = [checked_axis(field, values) for field, values in vary.items()]
            settings = settings_of(overrides or {})
            runs = planned_runs(file, settings, axes, workers, side_by_side)
            folder = new_sweep_folder(sweep_name(file, settings, runs), None if out is None else str(out))
            request = NewSweep(
                job_file=file, overrides=tuple(settings), axes=tuple(axes), out=str(folder), workers=workers,
                side_by_side=side_by_side, quiet=quiet, report=report,
            )  # fmt: skip
        return _swept(request, folder)


def resume_sweep(
    directory: str | Path, *, workers: int | None = None, retry_failed: bool = False, quiet: bool = True, report: bool = True
) -> SweepResult:
    """Go on with the unfinished runs of the sweep in `directory`, as `frostline sweep --resume` does. Raises as `sweep` does.

    Args:
        workers: worker processes of all runs together; None: as before.
        retry_failed: go on also with runs that failed or were cancelled.
        quiet, report: as in `sweep`.
    """
    with mistakes():
        request = ResumedSweep(folder=str(directory), workers=workers, retry_failed=retry_failed, quiet=quiet, report=report)
    return _swept(request, Path(directory).resolve())


def result(directory: str | Path) -> RunResult:
    """Return the run in a directory, ended or not. Raises FileNotFoundError where there is none."""
    folder = Path(directory).resolve()
    if not RunDirectory(folder).job.exists():
        raise FileNotFoundError(f"{folder} is no run directory: it has no job.yaml")
    return RunResult(folder)


def plan(
    job: JobLike, *, devices: Sequence[int] = (), freeze_point: int = 0, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the planner's choices, as `frostline plan --json` prints them; nothing is started. Raises JobMistake.

    Args:
        job, overrides: as in `start`.
        devices: numbers of equal devices to plan for; none: the job's number of workers.
        freeze_point: units before it are frozen; 0: those that the job freezes from step 1.
    """
    with _job_file(job) as file:
        checked = _checked(file, overrides)
    with mistakes():
        numbers, point = whole_numbers("devices", devices, least=1), whole_number("freeze_point", freeze_point)
        return _plain(forecast(checked, devices=numbers, freeze_point=point).as_json())


def status(directory: str | Path) -> dict[str, Any]:
    """Return the status of a run and of each worker, as `frostline status --json` prints it.

    Its `state` is "unreachable" where the run has not ended and no controller answers. Raises JobMistake.
    """
    with mistakes():
        folder = find_run_folder(str(directory))
        with closing(OperatorClient(folder)) as client:
            return _plain(read_status(folder, client)[0])


def verify(directory: str | Path, *, steps: Sequence[int] = (), quiet: bool = True) -> str:
    """Compute steps of a run again in one process (the trainer's verifier, which needs torch) and compare their bits.

    Args:
        directory: of the run.
        steps: the steps; none: one after each checkpoint, and the last.
        quiet: return the verifier's output; else it goes to standard output as it comes, and "" is returned.

    Raises:
        RunError: a bit differs (code 1).
        JobMistake: there is no run, or a step was never recorded.
    """
    with mistakes():
        folder, numbers = find_run_folder(str(directory)), whole_numbers("steps", steps)
    chosen = ["--steps", ",".join(str(step) for step in numbers)] if numbers else []
    return SeparateProcess("frostline_trainer.verify", [str(folder), *chosen], quiet=quiet).end()


def _swept(request: SweepRequest, folder: Path) -> SweepResult:
    """Carry out a sweep. Failed runs raise no error here, since each run has its own state."""
    try:
        sweep_in_a_process(request).end(also=(exit_codes.DRAINED,))
    except RunError as error:
        found = SweepResult(folder)
        if error.code != exit_codes.FAILED or not found.failed:
            raise
    return SweepResult(folder)


def _steer(directory: Path, kind: str) -> str:
    with mistakes(), closing(OperatorClient(directory)) as client:
        return client.command(kind)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values as JSON has them: those that the command prints."""
    return json.loads(json.dumps(values))


def _checked(file: str, overrides: Mapping[str, Any] | None) -> Job:
    """Return the job of a file with the overrides. Raises JobMistake."""
    with mistakes():
        return load_job(file, settings_of(overrides or {}))


@contextlib.contextmanager
def _job_file(job: JobLike) -> Iterator[str]:
    """Yield the path of a job file with the contents of `job`."""
    if isinstance(job, str | Path):
        yield str(job)
        return
    try:
        text = dump_job(job) if isinstance(job, Job) else write_yaml(dict(job))
    except yaml.YAMLError as error:
        raise JobMistake(exit_codes.USER_MISTAKE, f"job: holds what no job file can ({' '.join(map(str, error.args))})") from None
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix=".frostline-job-", dir=Path.cwd(), encoding="utf-8") as file:
        file.write(text)
        file.flush()
        yield file.name
