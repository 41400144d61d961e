"""Requests to a run's process, as typed values: a new run, or one that goes on.

`frostline run` and `frostline resume` carry a request out in their own process. The Python API, a sweep and a comparison write it
as text to a process of its own (`local_run/__main__.py`, docs/adr/0020-a-run-is-a-process.md).
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, TypeAdapter

from frostline_contract.job import Job, dump_job, parse_job, read_yaml
from frostline_controller.local_run.following import watch
from frostline_controller.local_run.prepared_run import new_run, resumed_run
from frostline_controller.local_run.request import Request
from frostline_controller.local_run.separate_process import SeparateProcess
from frostline_controller.local_run.terminal import open_terminal

PROCESS = "frostline_controller.local_run"
"""The module whose process carries out the request on its standard input."""


class _OfARun(Request):
    """A request for a run.

    Attributes:
        shared_cache: folder of a cache that is kept for several runs; None: the run has its own.
    """

    shared_cache: Path | None = None


def _job_of(given: Any) -> Any:
    return parse_job(read_yaml(given)) if isinstance(given, str) else given


class NewRun(_OfARun):
    """A new run.

    Attributes:
        job: checked, with absolute paths.
        job_file: the file that the job is from, for run.json; None: it is from none.
        out: the run directory, new or empty; None: runs/<name>, runs/<name>-2, ...
        replay: a run directory whose decisions are followed.
    """

    kind: Literal["run"] = "run"
    job: Annotated[Job, BeforeValidator(_job_of), PlainSerializer(dump_job)]
    job_file: Path | None = None
    out: str | None = None
    replay: Path | None = None


class ResumedRun(_OfARun):
    """A run that goes on from its newest checkpoint.

    Attributes:
        folder: the run directory.
        overrides: live fields, as `field=value`.
        workers: number of worker processes; None: as before.
        accept_numerics: go on although this machine or software computes other bits.
        from_scratch: train again from step 0 where no checkpoint is left.
    """

    kind: Literal["resume"] = "resume"
    folder: Path
    overrides: tuple[str, ...] = ()
    workers: int | None = Field(None, ge=1)
    accept_numerics: bool = False
    from_scratch: bool = False


RunRequest = NewRun | ResumedRun
_REQUEST: TypeAdapter[RunRequest] = TypeAdapter(Annotated[RunRequest, Field(discriminator="kind")])


def read_request(text: str) -> RunRequest:
    """Return the request with this text. Raises ValueError."""
    return _REQUEST.validate_python(json.loads(text))


def carry_out(request: RunRequest) -> int:
    """Train in this process and return when the run has ended; return the exit status.

    Raises:
        UserMistake: the run cannot be started; nothing was.
        CommandError: it could not be followed to its end.
    """
    if isinstance(request, ResumedRun):
        prepared = resumed_run(
            request.folder, overrides=request.overrides, workers=request.workers, accept_numerics=request.accept_numerics,
            from_scratch=request.from_scratch, shared_cache=request.shared_cache,
        )  # fmt: skip
    else:
        if request.job.training.automatic and not request.quiet:
            open_terminal(quiet=True).say(
                f"measuring, to settle training.{' and training.'.join(request.job.training.automatic)}"
            )
        prepared = new_run(
            request.job, out=request.out, replay=request.replay, job_file=request.job_file, shared_cache=request.shared_cache
        )
    with prepared as run:
        return watch(run, quiet=request.quiet, report=request.report)


def in_a_process(
    request: RunRequest, *, keep_output: bool = True, dies_with_us: bool = False, environment: Mapping[str, str] | None = None
) -> SeparateProcess:
    """Start a process that carries the request out.

    Args:
        request: the request.
        keep_output: keep the standard output of the process; else the output goes to this process's.
        dies_with_us: the kernel kills the process when this process is killed. Then call from a thread that lives as long.
        environment: of the process; None: this process's.
    """
    return SeparateProcess(
        PROCESS, request=request.text, called=f"frostline {request.kind}", quiet=keep_output,
        dies_with_us=dies_with_us, environment=environment,
    )  # fmt: skip
