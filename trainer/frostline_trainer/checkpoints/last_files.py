"""Writes the last files of a run, its final checkpoint and its model, with retries.

One failed write would lose a run that has trained to its end, and the run has nothing else to do. So it waits for a full or
stalled disk, and shows that in status and log. It gives up only after PATIENCE_SECONDS, or when the user stops the run.
"""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError

from frostline_contract.backoff import Backoff
from frostline_contract.durable_files import move_durably, sync_file, sync_folder
from frostline_trainer.checkpoints import saving as limits
from frostline_trainer.checkpoints.reading import is_complete, read_manifest
from frostline_trainer.checkpoints.restoring import restore_pieces
from frostline_trainer.checkpoints.saving import Saving
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.generations.entering import Entered
from frostline_trainer.model import numbers_saved, save_model
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.generation import Generation
from frostline_trainer.step.run_state import RunState
from frostline_trainer.step.unit_state import take_whole

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 10.0
WAIT_SECONDS = 0.2
GROWTH_SECONDS = 0.5
HOPELESS = os.strerror(errno.EFBIG)
"""Part of the error of a write over this process's file size limit: it is not retried, since free space would not help."""


class LastFiles:
    """Writes the run's last files.

    Args:
        saving: this worker's checkpoints.
        mailbox: the controller's notices; one of them may end the wait for the other members.
        moved: called often, as a sign of progress.
        patient: whether failed writes are retried; not for a run that has failed.
    """

    def __init__(self, saving: Saving, mailbox: Mailbox, moved: Callable[[], None], patient: bool = True) -> None:
        self._saving, self._mailbox, self._moved = saving, mailbox, moved
        self._seconds = limits.PATIENCE_SECONDS if patient else 0.0
        self._drain_at_start = mailbox.drain

    def hand_in(self, entered: Entered, state: RunState) -> Path:
        """Start to write the final checkpoint in the background. Returns its folder."""
        folder = self._saving.checkpoint(entered, state, before_freeze=False, last=True)
        self._saving.stable()
        return folder

    def checkpoint(self, entered: Entered, state: RunState, folder: Path) -> str:
        """Wait until the final checkpoint is complete, or all members give it up. Collective. Returns why it was given up; empty:
        it is complete."""
        patience = Patience(self._seconds)
        while why_not := self._checkpoint_once(entered.generation, folder, state.step):
            patient = HOPELESS not in why_not and self._pause(patience)
            if who_says(entered.generation, not patient):
                return why_not
            self.hand_in(entered, state)
        return ""

    def model(self, context: RunContext, folder: Path, directory: Path, step: int) -> str:
        """Write the model for plain transformers; one member does this. Returns why it was given up; empty: it is written."""
        patience = Patience(self._seconds)
        while why_not := save_final_model(context, folder, directory, self._moved):
            self._saving.report_last(step, why_not)
            if HOPELESS in why_not or not self._pause(patience):
                return why_not
        return ""

    def _checkpoint_once(self, generation: Generation, folder: Path, step: int) -> str:
        """Write all shares, then the manifest. When this returns after a failure, no member writes in the folder any more."""
        why_not = agree_written(generation, self._saving.wait_for_share(folder, self._moved))
        if not why_not:
            self._saving.finish(self._moved)
            if generation.world.index == 0 and not is_complete(folder):
                why_not = self._saving.why_not_written(folder) or "a share of it is gone"
                self._saving.report_last(step, why_not)
            why_not = agree_written(generation, why_not)
        if why_not:
            self._saving.abandon()
            self._saving.finish(self._moved)
        return why_not

    def _pause(self, patience: "Patience") -> bool:
        """Wait before the next try. False if there is to be none."""
        until = patience.next_try()
        while time.monotonic() < until:
            if self._mailbox.end or self._mailbox.drain != self._drain_at_start:
                return False
            self._mailbox.check()
            self._moved()
            self._mailbox.wait(WAIT_SECONDS)
        return not patience.over


class Patience:
    """Retry timing: ever longer pauses between tries, over a total of `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)

    @property
    def over(self) -> bool:
        """Whether the total time has passed, so that there is no further try."""
        return time.monotonic() >= self._end

    def next_try(self) -> float:
        """The time of the next try, by the monotonic clock."""
        return min(time.monotonic() + self._backoff.failed(), self._end)


def agree_written(generation: Generation, why_not: str) -> str:
    """Agree whether all members have written their share of the final checkpoint. Collective; all wait for the slowest one.

    Args:
        why_not: why this member could not write its share; empty if it did.

    Returns:
        `why_not`, or whose share is missing, or "".
    """
    without = who_says(generation, bool(why_not))
    return why_not or (f"members {without} could not write their part" if without else "")


def who_says(generation: Generation, yes: bool) -> list[int]:
    """The members that say yes, by their place in the world. Collective; the same answer on all members."""
    said = torch.zeros(generation.world.size, dtype=torch.int32)
    said[generation.world.index] = int(yes)
    generation.world.all_reduce_sum(said)
    return list(map(int, said.nonzero().flatten()))


def save_final_model(context: RunContext, folder: Path, directory: Path, moved: Callable[[], None] = lambda: None) -> str:
    """Load all units of the final checkpoint and save the model for plain transformers.

    Args:
        context: the run's model, on this worker.
        folder: the final checkpoint.
        directory: folder of the saved model.
        moved: called for every unit, and whenever the files have grown.

    Returns:
        Why the model could not be written; empty if it was.
    """
    try:
        manifest = read_manifest(folder)
        for index, unit in enumerate(context.cut.units):
            moved()
            take_whole(unit)
            unit.to("cpu")
            restore_pieces(context, {}, folder, manifest, context.pieces.of_unit(index))
        _save_whole(context, directory, moved)
    except (OSError, SafetensorError) as error:
        return str(error)
    return ""


def _save_whole(context: RunContext, directory: Path, moved: Callable[[], None]) -> None:
    """Write the model's directory and rename it into place, so that a killed writer leaves no half model that looks complete."""
    beside = [directory.with_name(f".{directory.name}{suffix}") for suffix in (".partial", ".before")]
    for left in beside:
        shutil.rmtree(left, ignore_errors=True)
    partial, before = beside
    wanted = context.job.checkpoint.saved_precision
    dtype = getattr(torch, wanted) if wanted is not None else context.precision.weights
    needed = dtype.itemsize * numbers_saved(context.cut)
    directory.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory.parent).free
    if free < needed:
        raise OSError(f"{directory} needs {needed} bytes, {free} are free")
    with _watching_growth(partial, moved):
        save_model(context.cut, partial, context.data.processor, dtype)
    for path in sorted(partial.rglob("*"), reverse=True):  # a folder's contents before the folder
        moved()
        (sync_folder if path.is_dir() else sync_file)(path)
    sync_folder(partial)
    if directory.exists():
        move_durably(directory, before)
    move_durably(partial, directory)
    shutil.rmtree(before, ignore_errors=True)


@contextmanager
def _watching_growth(folder: Path, moved: Callable[[], None]) -> Iterator[None]:
    """A context in which another thread calls `moved` whenever the folder's files have grown, since libraries that write files
    report no progress."""
    done = threading.Event()

    def watch() -> None:
        size = -1
        while not done.wait(GROWTH_SECONDS):
            with suppress(OSError):  # a file may be renamed just now
                if (now := sum(path.stat().st_size for path in folder.rglob("*"))) != size:
                    size = now
                    moved()

    watcher = threading.Thread(target=watch, name="model-growth", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
