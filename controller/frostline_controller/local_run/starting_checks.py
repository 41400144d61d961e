"""Checks before anything is started: the run's own state, and every place to which the run will write."""

from pathlib import Path

from frostline_contract.durable_files import create_durably, make_folder_durably
from frostline_contract.epochs import EPOCHS_FOLDER, RunEpoch
from frostline_contract.job import Job
from frostline_contract.jsonl import read_jsonl
from frostline_contract.run_directory import RunDirectory
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.local_run.errors import UserMistake
from frostline_controller.run.checkpoints import CannotWrite, found_checkpoints, try_to_write
from frostline_controller.run.durable import read_state
from frostline_controller.run.same_job import check_same_job
from frostline_rpc.auth import Tokens


def check_can_write_checkpoints(root: Path, new: bool = False) -> None:
    """Write a file into the checkpoint root and remove it. Raises UserMistake: such a run could not save its result.

    Args:
        root: the checkpoint root.
        new: whether the run has not begun, so that its job may still name another folder.
    """
    try:
        try_to_write(root)
    except CannotWrite as error:
        elsewhere = ", or set checkpoint.uri to another folder" if new else ""
        raise UserMistake(f"{error}{elsewhere}") from None


def check_unused(job: Job, root: Path) -> None:
    """Raise UserMistake where a new run's checkpoint root holds another run's checkpoints: training would go on from them."""
    if found_checkpoints(root):
        raise UserMistake(
            f"checkpoint.uri is {job.checkpoint.uri!r}: {root} holds another run's checkpoints; name an empty or new folder, or "
            "go on with that run by `frostline resume DIR`"
        )


def check_resumable(folder: Path, job: Job, from_scratch: bool) -> None:
    """Check the files that an earlier start has left. Raises UserMistake or ValueError where the run cannot go on from them.

    Args:
        folder: the run directory.
        job: the job to go on with.
        from_scratch: where no checkpoint is left, prepare the checkpoint root for a start from step 0.
    """
    places = RunDirectory(folder)
    state = read_state(LocalBackend(places.cluster).read())
    check_same_job(state, job, places.job)
    if places.tokens.exists():
        Tokens.read(places.tokens)
    root, recorded = job.checkpoint_root(folder), _recorded(folder)
    if _holds_something(root) or not (recorded or len(state.lineages) > 1):
        return
    if not from_scratch:
        raise UserMistake(_nothing_there(job, root, recorded))
    make_folder_durably(root / EPOCHS_FOLDER)  # an empty folder means to the controller that a new start is intended
    if state.current is not None and state.current.run_epoch > 0:
        # The run epoch's object, as it would be if the run epoch had begun with the initial weights.
        begun = RunEpoch(version=1, run_epoch=state.current.run_epoch, plan=str(state.current.generation))
        create_durably(root / begun.file(), begun.text())


def how_to_go_on(folder: Path, job: Job) -> str:
    """Return the command that resumes a stopped run."""
    lost = _recorded(folder) > 0 and not _holds_something(job.checkpoint_root(folder))
    return f"frostline resume {folder}" + (" --from-scratch  (it had no checkpoint yet)" if lost else "")


def _recorded(folder: Path) -> int:
    """Return the highest step with a record."""
    return max((line.get("step", 0) for line in read_jsonl(RunDirectory(folder).metrics)), default=0)


def _holds_something(root: Path) -> bool:
    """Whether a checkpoint root has been used by this run: it has a checkpoint or a run epoch's object."""
    return any((root / EPOCHS_FOLDER).glob("*.json")) or bool(found_checkpoints(root))


def _nothing_there(job: Job, root: Path, recorded: int) -> str:
    moved = ""
    if job.checkpoint.uri and not Path(job.checkpoint.uri).is_absolute():
        moved = "; checkpoint.uri is relative to the run directory: move checkpoints that lie elsewhere there"
    return (
        f"the run has recorded {recorded} steps, and {root} holds no checkpoint of it; mount or restore that folder{moved}, or "
        "train again from step 0 with --from-scratch"
    )
