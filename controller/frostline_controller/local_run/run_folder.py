"""Run directories: choosing, making and finding them."""

import contextlib
from pathlib import Path
from typing import Any

from frostline_contract.durable_files import DRAFT, make_folder_durably, replace_durably, sync_folder
from frostline_contract.job import Job, JobError, dump_job, load_job
from frostline_contract.run_directory import RunDirectory
from frostline_controller.local_run.errors import UserMistake

RUNS = Path("runs")


def new_run_folder(job_name: str, out: str | None) -> Path:
    """Make the folder of a new run: `out`, or runs/<name>, runs/<name>-2, ... Raises UserMistake where `out` holds a run."""
    if out is not None:
        folder = Path(out)
        if RunDirectory(folder).holds_run():
            raise UserMistake(f"{folder} holds another run; go on with it by `frostline resume {folder}`, or give another --out")
        if _holds_something(folder):
            raise UserMistake(f"{folder} is not empty and holds no run; give an empty or new folder with --out")
        _make(folder, exist_ok=True)
        return folder.resolve()
    for number in range(1, 10_000):
        folder = RUNS / (job_name if number == 1 else f"{job_name}-{number}")
        if not folder.exists() and _make(folder, exist_ok=False):
            return folder.resolve()
    raise UserMistake(f"{RUNS}/{job_name}-2 to -9999 all exist; remove some or give --out")


def give_back(folder: Path) -> None:
    """Remove the folder of a new run in which nothing has been started, if nothing else is in it."""
    with contextlib.suppress(OSError):
        RunDirectory(folder).lock.unlink(missing_ok=True)
        folder.rmdir()


def find_run_folder(given: str | None) -> Path:
    """Return the run directory of a command: the given one, or the newest in runs/. Raises UserMistake."""
    if given is not None:
        folder = Path(given)
        if not folder.is_dir():
            raise UserMistake(f"{folder}: no such directory; give a run directory such as runs/digits")
        if not RunDirectory(folder).holds_run():
            raise UserMistake(f"{folder} is no run directory: it has neither job.yaml nor metrics.jsonl")
        return folder.resolve()
    found = [folder for folder in RUNS.glob("*") if RunDirectory(folder).holds_run()]
    if not found:
        raise UserMistake("no run in runs/; give a run directory, or start one with `frostline run -f JOB`")
    return max(found, key=_changed_at).resolve()


def _changed_at(folder: Path) -> float:
    """When a file of a run directory was last written; a link counts itself, since what it led to may be gone."""
    times = [0.0]
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a draft that took its file's place meanwhile
            times.append(path.lstat().st_mtime)
    return max(times)


def write_run_folder(folder: Path, job: Job, facts: dict[str, Any]) -> None:
    """Write the resolved job and run.json (the facts known before the run starts), each whole or not at all."""
    replace_durably(RunDirectory(folder).job, dump_job(job))
    RunDirectory(folder).write_facts(facts)


def read_job(folder: Path) -> Job:
    """Read the resolved job of a run directory. Raises UserMistake where it is missing or broken."""
    try:
        return load_job(RunDirectory(folder).job)
    except JobError as error:
        raise UserMistake(str(error)) from None


def _make(folder: Path, exist_ok: bool) -> bool:
    """Make a folder. False where another process has made it at the same moment."""
    try:
        make_folder_durably(folder.parent)
        folder.mkdir(exist_ok=exist_ok)
        sync_folder(folder.parent)
    except FileExistsError:
        if exist_ok or not folder.is_dir():
            raise UserMistake(f"{folder}: is no directory; give another --out") from None
        return False
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserMistake(f"{folder}: cannot be made ({reason}); give another --out") from None
    return True


def _holds_something(folder: Path) -> bool:
    """Whether a folder has any entry but the leftovers of a start that was refused or killed before it wrote its job.

    These are the lock, drafts, and a checkpoint root in which only its trial of writing was made.
    """
    try:
        return folder.is_dir() and any(
            entry != RunDirectory(folder).lock and not _is_leftover(entry) for entry in folder.iterdir()
        )
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserMistake(f"{folder}: cannot be read ({reason}); give another --out") from None


def _is_leftover(entry: Path) -> bool:
    """Whether an entry is a draft, or a folder of nothing but such."""
    if entry.is_symlink() or not entry.is_dir():
        return bool(DRAFT.fullmatch(entry.name))
    return all(_is_leftover(one) for one in entry.iterdir())
