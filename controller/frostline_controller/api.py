"""Frostline from Python: each function does exactly what the command of the same name does.

    from frostline_controller import api

    done = api.run("examples/image_classification/digits.yaml", out="runs/mine", workers=4, overrides={"training.epochs": 6})
    print(done.final["accuracy"], done.digest)
    api.verify(done.directory)

A run lives in processes of its own and leaves a directory; a `RunResult` is a view of that directory, so it can be had again
at any time by `api.result(directory)`. No function here needs torch; docs/python-api.md shows them all at work.
"""

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from frostline_contract.job import Job, JobError, dump_job, load_job
from frostline_contract.mesh import with_degrees
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import status_word
from frostline_controller.cli import exit_codes
from frostline_controller.cli.errors import UserMistake
from frostline_controller.cli.run_folder import new_run_folder

JobLike = Job | Mapping[str, Any] | str | Path
"""A checked Job, a mapping as a job file holds it, or the path of a job file. Relative paths in a mapping are relative to the
working directory, those in a file to the file."""


class RunError(Exception):
    """The command did not succeed. code: its exit status (`frostline_controller.cli.exit_codes`); the text is its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class JobMistake(RunError, ValueError):
    """Arguments, job or data are wrong (exit status 2); the text says what and how to mend it."""


@dataclass(frozen=True)
class RunResult:
    """A view of a run directory (docs/run-directory.md has every schema)."""

    directory: Path

    @property
    def result(self) -> dict[str, Any]:
        """result.json. Raises FileNotFoundError where the run has not ended."""
        return json.loads(RunDirectory(self.directory).result.read_text(encoding="utf-8"))

    @property
    def status(self) -> str:
        """completed, suspended, failed or cancelled."""
        return status_word(str(self.result["status"]))

    @property
    def steps(self) -> int:
        """The last committed step."""
        return int(self.result["steps"])

    @property
    def digest(self) -> str:
        """SHA-256 of final weights and optimizer state: the same on any placement (docs/protocols.md 1.10)."""
        return str(self.result["digest"])

    @property
    def final(self) -> dict[str, float]:
        """Loss and metrics on the test split."""
        return dict(self.result["final"])

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The surviving records by step, one a step: what a rollback or a restore took back is left out."""
        records = RunDirectory(self.directory).read_records().surviving
        return [with_degrees(line) for line in records]

    @property
    def model_directory(self) -> Path:
        """What `save_pretrained` wrote: `AutoModel...from_pretrained` takes it."""
        return RunDirectory(self.directory).model


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
    """Train a job on this machine, as `frostline run` does, and return when it has ended.

    out: the run directory, new or empty; None: runs/<name>, runs/<name>-2, ... workers: worker processes. overrides: dotted
    fields of the job and their values. replay: a run directory whose decisions are followed. quiet: no progress on the terminal.
    report: draw report.html at the end.
    A run that was drained (Ctrl-C, suspend) returns too, with status "suspended". Raises JobMistake and RunError.
    """
    options = [*_set_options(overrides), *_option("--workers", workers), *_option("--replay", replay)]
    with _job_file(job) as file:
        folder = _run_folder(file, overrides, out)
        words = ["run", "-f", file, "--out", str(folder), *options, *_ending(quiet, report)]
        _command(words, quiet, also=(exit_codes.DRAINED,))
    return RunResult(folder)


def resume(
    directory: str | Path,
    *,
    workers: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    from_scratch: bool = False,
    quiet: bool = True,
    report: bool = True,
) -> RunResult:
    """Go on with a run that stopped, as `frostline resume` does; returns when it has ended again.

    overrides: live fields only; a fixed one is refused. from_scratch: train again from step 0 where no checkpoint of the run is
    left, which is refused otherwise. Raises JobMistake and RunError.
    """
    options = [*_set_options(overrides), *_option("--workers", workers), *(["--from-scratch"] if from_scratch else [])]
    words = ["resume", str(directory), *options, *_ending(quiet, report)]
    _command(words, quiet, also=(exit_codes.DRAINED,))
    return RunResult(Path(directory).resolve())


def result(directory: str | Path) -> RunResult:
    """The run in a directory, ended or not. Raises FileNotFoundError where there is none."""
    folder = Path(directory).resolve()
    if not RunDirectory(folder).job.exists():
        raise FileNotFoundError(f"{folder} is no run directory: it has no job.yaml")
    return RunResult(folder)


def plan(
    job: JobLike, *, devices: Sequence[int] = (), freeze_point: int = 0, overrides: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What the planner would do, as `frostline plan --json` prints it: no cluster, nothing is started.

    devices: numbers of devices to plan for; none: the job's workers. Raises JobMistake.
    """
    with _job_file(job) as file:
        counts = ["--devices", *(str(count) for count in devices)] if devices else []
        words = ["plan", "-f", file, "--json", "--freeze-point", str(freeze_point), *_set_options(overrides), *counts]
        return json.loads(_command(words, quiet=True))


def status(directory: str | Path) -> dict[str, Any]:
    """Where a run stands and what each worker does, as `frostline status --json` prints it.

    Its `state` is "unreachable" where the run has not ended and no controller answers. Raises JobMistake.
    """
    return json.loads(_command(["status", str(directory), "--json"], quiet=True, also=(exit_codes.NO_RUN,)))


def verify(directory: str | Path, *, steps: Sequence[int] = ()) -> str:
    """Compute steps of a run again in one process and compare their bits, as `frostline verify` does.

    steps: none: one after each checkpoint, and the last. Returns what the verifier says of each step. Raises RunError (code 1)
    where a bit differs, JobMistake where a step was never recorded.
    """
    chosen = ["--steps", ",".join(str(step) for step in steps)] if steps else []
    return _command(["verify", str(directory), *chosen], quiet=True)


def _ending(quiet: bool, report: bool) -> list[str]:
    return [*(["--quiet"] if quiet else []), *([] if report else ["--no-report"])]


def _command(words: list[str], quiet: bool, also: Sequence[int] = ()) -> str:
    """Carry a command out in a process of its own; its standard output where `quiet`, else that goes where ours goes.

    also: exit statuses that are no error beside 0. Ctrl-C is passed on, so that a run drains; twice stops it at once.
    """
    output = subprocess.PIPE if quiet else None
    argv = [sys.executable, "-P", "-m", "frostline_controller.cli.main", *words]
    # A session of its own: it hears of Ctrl-C from us alone, and so exactly once, whoever our terminal tells as well.
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    said, complaints = None, None
    while complaints is None:
        try:
            said, complaints = process.communicate()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
    if process.returncode == exit_codes.DONE or process.returncode in also:
        return said or ""
    message = complaints.strip().removeprefix("frostline: ")
    if not message:
        message = (said or "").strip() or f"`frostline {words[0]}` ended with code {process.returncode}"
    raise (JobMistake if process.returncode == exit_codes.USER_MISTAKE else RunError)(process.returncode, message)


@contextlib.contextmanager
def _job_file(job: JobLike) -> Iterator[str]:
    """The path of a job file that says what `job` says."""
    if isinstance(job, str | Path):
        yield str(job)
        return
    try:
        text = dump_job(job) if isinstance(job, Job) else yaml.safe_dump(dict(job), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise JobMistake(exit_codes.USER_MISTAKE, f"job: holds what no job file can ({' '.join(map(str, error.args))})") from None
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", prefix=".frostline-job-", dir=Path.cwd(), encoding="utf-8") as file:
        file.write(text)
        file.flush()
        yield file.name


def _run_folder(file: str, overrides: Mapping[str, Any] | None, out: str | Path | None) -> Path:
    """The folder that the command would choose, chosen here so that it is known. Raises JobMistake."""
    try:
        name = load_job(file, [f"{path}={json.dumps(value)}" for path, value in (overrides or {}).items()]).name
        return new_run_folder(name, None if out is None else str(out))
    except (JobError, UserMistake) as mistake:
        raise JobMistake(exit_codes.USER_MISTAKE, str(mistake)) from None


def _set_options(values: Mapping[str, Any] | None) -> list[str]:
    """--set options; values are written as JSON, which is YAML."""
    return [word for path, value in (values or {}).items() for word in ("--set", f"{path}={json.dumps(value)}")]


def _option(name: str, value: Any) -> list[str]:
    return [] if value is None else [name, str(value)]
