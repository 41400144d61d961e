"""A run directory that is ready to be run on this machine: checked and owned, with nothing started yet.

`frostline run` and `frostline resume` start the services of a prepared run.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frostline_contract.cache_tag import unsigned_refusal
from frostline_contract.durable_files import remove_drafts
from frostline_contract.job import Job
from frostline_contract.job.automatic import with_settled
from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import RunStatus
from frostline_controller.cluster.local.measuring import settled_here
from frostline_controller.cluster.local.shared_cache import check_redis_server, check_shared_cache, uses_cache
from frostline_controller.decisions.next_decision import followed_run, replayed_decisions, with_recorded_start
from frostline_controller.local_run.control import OperatorClient
from frostline_controller.local_run.errors import CommandError, UserMistake
from frostline_controller.local_run.resuming import resumed_job
from frostline_controller.local_run.run_folder import give_back, new_run_folder, read_job, write_run_folder
from frostline_controller.local_run.run_lock import owned
from frostline_controller.local_run.starting_checks import check_can_write_checkpoints, check_resumable, check_unused


@dataclass(frozen=True)
class PreparedRun:
    """The facts with which the services of a run are started.

    Attributes:
        folder: the run directory, which holds the job.
        job: resolved.
        replay: a run directory whose decisions are followed; None: the run decides itself.
        resume: arguments of the controller's first start: none for a new run, else "--resume" and perhaps "--accept-numerics",
            and "--limit=-1" where the user has given a number of workers, which an earlier resize does not limit.
        shared_cache: folder of a cache that is kept for several runs; None: the run has its own.
    """

    folder: Path
    job: Job
    replay: Path | None = None
    resume: tuple[str, ...] = ()
    shared_cache: Path | None = None


@contextmanager
def new_run(
    job: Job, *, out: str | None = None, replay: Path | None = None, job_file: Path | None = None,
    shared_cache: Path | None = None,
) -> Iterator[PreparedRun]:  # fmt: skip
    """Make the directory of a new run, and own it until the end of the context.

    Args:
        job: the job to train.
        out: the run directory, new or empty; None: runs/<name>, runs/<name>-2, ...
        replay: a run directory whose decisions are followed.
        job_file: path of the job file, for run.json.
        shared_cache: folder of a cache that is kept for several runs.

    Raises:
        UserMistake: the job, the directory or the replayed run cannot be used.
    """
    if replay is not None and not RunDirectory(replay).plans.exists():
        raise UserMistake(f"--replay {replay}: holds no plans.jsonl; give the directory of a run that has trained")
    replayed_decisions(job, replay)
    if (followed := followed_run(job, replay)) is not None:
        job = with_recorded_start(job, followed)
    _check_cache(job, None, shared_cache)
    settled = settled_here(job)
    if settled is not None:
        job = with_settled(job, settled)
    folder = new_run_folder(job.name, out)
    with owned(folder):
        if RunDirectory(folder).holds_run():  # another command made it at the same moment
            raise UserMistake(f"{folder} holds another run; give another --out")
        try:
            check_can_write_checkpoints(job.checkpoint_root(folder), new=True)
            check_unused(job, job.checkpoint_root(folder))
        except UserMistake:
            give_back(folder)
            raise
        facts = {"job_file": str(job_file or ""), "started_at": time.time(), "replay": str(replay or "")}
        if settled is not None:
            facts["settled"] = settled.model_dump()
        write_run_folder(folder, job, facts)
        yield PreparedRun(folder, job, replay, shared_cache=shared_cache)


@contextmanager
def resumed_run(
    folder: Path, *, overrides: Sequence[str] = (), workers: int | None = None, accept_numerics: bool = False,
    from_scratch: bool = False, shared_cache: Path | None = None,
) -> Iterator[PreparedRun]:  # fmt: skip
    """Own a run directory until the end of the context, to go on from its newest checkpoint.

    Args:
        folder: the run directory.
        overrides: live fields, as `field=value`.
        workers: number of worker processes; None: as before.
        accept_numerics: workers of another probe digest are accepted, and the record says so.
        from_scratch: train again from step 0 where no checkpoint is left.
        shared_cache: folder of a cache that is kept for several runs.

    Raises:
        UserMistake: the run has completed, is running, has lost its checkpoints, or a fixed field was to change.
    """
    if RunDirectory(folder).ended_as() == RunStatus.COMPLETED:
        raise UserMistake(f"{folder} has completed; there is nothing to go on with")
    with owned(folder):
        # An owner on another machine or of another version may hold no lock that is visible here.
        with closing(OperatorClient(folder)) as client:
            if _answers(client):
                raise UserMistake(f"{folder} is running; see it with `frostline status {folder} --watch`")
        for written in (folder, RunDirectory(folder).cluster):
            remove_drafts(written)
        kept, facts = read_job(folder), RunDirectory(folder).read_facts()
        job, replay = resumed_job(kept, list(overrides), workers), _replay_of(facts)
        _check_cache(job, folder, shared_cache)
        _check_followed(job, replay)
        check_resumable(folder, kept, from_scratch)
        resized = workers is not None or any(one.partition("=")[0].strip() == "placement.workers" for one in overrides)
        said = ("--resume", *(["--accept-numerics"] if accept_numerics else []), *(["--limit=-1"] if resized else []))
        check_can_write_checkpoints(job.checkpoint_root(folder))
        write_run_folder(folder, job, {**facts, "resumed_at": time.time()})
        # The earlier result no longer holds; its message is in events.jsonl.
        RunDirectory(folder).result.unlink(missing_ok=True)
        yield PreparedRun(folder, job, replay, said, shared_cache)


def _check_cache(job: Job, folder: Path | None, shared_cache: Path | None) -> None:
    """Check the cache of a job.

    Raises UserMistake where the job names external servers and nothing signs the values stored there, or where no process
    keeps `shared_cache`; RedisUnavailable where the run is to start servers of its own and there is no redis-server.
    """
    if shared_cache is not None:
        check_shared_cache(shared_cache)
    else:
        check_redis_server(job)
    if not uses_cache(job):
        return
    try:
        refusal = unsigned_refusal(job.cache, folder)
    except ValueError as error:
        raise UserMistake(str(error)) from None
    if refusal is not None:
        raise UserMistake(refusal)


def _check_followed(job: Job, replay: Path | None) -> None:
    """Raise UserMistake where the decisions that a run follows are no longer there."""
    try:
        replayed_decisions(job, replay)
    except ValueError as error:
        raise UserMistake(f"{error}; this run follows its decisions: move that folder back there") from None


def _answers(client: OperatorClient) -> bool:
    try:
        client.status(deadline_seconds=1.0)
    except CommandError:
        return False
    return True


def _replay_of(facts: dict[str, Any]) -> Path | None:
    replay = str(facts.get("replay", ""))
    return Path(replay) if replay else None
