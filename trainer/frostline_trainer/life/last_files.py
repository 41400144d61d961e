"""The last files of a run, its final checkpoint and its model: written again and again until they are there.

A run that has trained to its end has all of it to lose by one write that fails, and nothing else to do. So a full or a stalled
disk is waited out, said in status and log; only after PATIENCE_SECONDS, or where somebody stops the run, is it given up.
"""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from frostline_trainer.checkpoints.reading import is_complete
from frostline_trainer.control.mailbox import Mailbox
from frostline_trainer.engine.context import RunContext
from frostline_trainer.engine.generation import Generation
from frostline_trainer.life import saving as limits
from frostline_trainer.life.entering import Entered
from frostline_trainer.life.finishing import agree_written, save_final_model, who_says
from frostline_trainer.life.saving import Saving
from frostline_trainer.training.run_state import RunState

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 10.0
WAIT_SECONDS = 0.2
HOPELESS = os.strerror(errno.EFBIG)
"""In the reason of a write that this process may not make (its own limit of a file's size): no room that comes helps."""


class LastFiles:
    """Writes the run's last files. moved(): a sign of life, often. patient: whether what cannot be written is tried again; a run
    that has failed has nothing to wait for.
    """

    def __init__(self, saving: Saving, mailbox: Mailbox, moved: Callable[[], None], patient: bool = True) -> None:
        self._saving, self._mailbox, self._moved = saving, mailbox, moved
        self._seconds = limits.PATIENCE_SECONDS if patient else 0.0
        self._told_to_stop = mailbox.drain

    def hand_in(self, entered: Entered, state: RunState) -> Path:
        """Have the final checkpoint written in the background. Returns its folder."""
        folder = self._saving.checkpoint(entered, state, before_freeze=False, last=True)
        self._saving.stable()
        return folder

    def checkpoint(self, entered: Entered, state: RunState, folder: Path) -> str:
        """All members together: the checkpoint that was handed in is complete, or given up by all. Returns why; empty: it is
        complete."""
        patience = Patience(self._seconds)
        while why_not := self._checkpoint_once(entered.generation, folder, state.step):
            patient = HOPELESS not in why_not and self._pause(patience)
            if who_says(entered.generation, not patient):
                return why_not
            self.hand_in(entered, state)
        return ""

    def model(self, context: RunContext, folder: Path, directory: Path, step: int) -> str:
        """One member alone: what plain transformers loads. Returns why it is given up; empty: it is there."""
        patience = Patience(self._seconds)
        while why_not := save_final_model(context, folder, directory, self._moved):
            self._saving.tell_last(step, why_not)
            if HOPELESS in why_not or not self._pause(patience):
                return why_not
        return ""

    def _checkpoint_once(self, generation: Generation, folder: Path, step: int) -> str:
        """All shares, then the manifest. Where that fails nobody writes in the folder any more when this returns here."""
        why_not = agree_written(generation, self._saving.wait_for_share(folder, self._moved))
        if not why_not:
            self._saving.finish(self._moved)
            if generation.world.index == 0 and not is_complete(folder):
                why_not = self._saving.why_not_written(folder) or "a share of it is gone"
                self._saving.tell_last(step, why_not)
            why_not = agree_written(generation, why_not)
        if why_not:
            self._saving.abandon()
            self._saving.finish(self._moved)
        return why_not

    def _pause(self, patience: "Patience") -> bool:
        """Wait before the next try. False where there is to be none."""
        until = patience.next_try()
        while time.monotonic() < until:
            if self._mailbox.end or self._mailbox.drain != self._told_to_stop:
                return False
            self._mailbox.check()
            self._moved()
            self._mailbox.wait(WAIT_SECONDS)
        return not patience.over


class Patience:
    """Ever longer pauses between tries, until it is over after `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._pause = FIRST_PAUSE_SECONDS

    @property
    def over(self) -> bool:
        return time.monotonic() >= self._end

    def next_try(self) -> float:
        """When, by the monotonic clock."""
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        return min(time.monotonic() + pause, self._end)
