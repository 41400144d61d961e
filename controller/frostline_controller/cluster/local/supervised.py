"""A program that is started again when it ends: its one present process, and the time of its next start.

Pods and services of the local cluster are kept this way. They decide what an end means (a success, a mistake, one more try). An
agent's workers are children of its preload process and share only the back-off.
"""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from frostline_contract.backoff import Backoff
from frostline_controller.cluster.local.child import kill_group, signal_child, start_child, strike_group

LOOK_SECONDS = 0.02


class SupervisedChild:
    """One program and its present process. All calls come from one thread, which lives as long as the process.

    Attributes:
        backoff: counts the early ends in a row.
        lived_seconds: lifetime of the last process that ended.
    """

    def __init__(self, env: dict[str, str], log: Path, folder: Path, backoff: Backoff) -> None:
        """Make the supervisor of one process, which is not started yet.

        Args:
            env: environment of the process.
            log: file to which the process's output is appended.
            folder: working directory of the process.
            backoff: the waits between restarts.
        """
        self.env, self.log, self.backoff = env, log, backoff
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._next_start = 0.0
        self.lived_seconds = 0.0

    @property
    def process_id(self) -> int | None:
        """The process id; None while no process runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def present(self) -> bool:
        """Whether a process runs, or has ended without its end having been taken yet."""
        return self._process is not None

    def start_if_due(self, argv: list[str]) -> bool:
        """Start the program where none is present and its start is due. True where it was started. Raises OSError."""
        now = time.monotonic()
        if self._process is not None or now < self._next_start:
            return False
        self._process, self._started = start_child(argv, self.env, self.log, self._folder), now
        return True

    def take_end(self) -> int | None:
        """Return the exit code of a process that has ended, once, and kill what is left of its session. None: nothing has
        ended."""
        if self._process is None or self._process.poll() is None:
            return None
        return self.end()

    def end(self) -> int:
        """Send SIGKILL to the present process and its children; return its exit code."""
        assert self._process is not None
        kill_group(self._process)
        code = self._process.returncode
        self._process, self.lived_seconds = None, time.monotonic() - self._started
        return code

    def wait_after_failure(self) -> float:
        """Delay the next start after a failure; return the delay in seconds."""
        wait = self.backoff.failed(self.lived_seconds)
        self.wait(wait)
        return wait

    def wait(self, seconds: float) -> None:
        """Delay the next start by `seconds`."""
        self._next_start = time.monotonic() + seconds

    def signal(self, number: int) -> None:
        """Send a signal to the present process, where there is one."""
        if self._process is not None:
            signal_child(self._process, number)

    def kill(self) -> None:
        """Send SIGKILL to the process and its children; return when it has ended. Its end is still to be taken."""
        if self._process is not None:
            kill_group(self._process)

    def strike(self) -> None:
        """Send SIGKILL to the process and its children, without waiting."""
        if self._process is not None:
            strike_group(self._process)

    def end_within(self, seconds: float, still_waiting: Callable[[], bool] = lambda: True) -> None:
        """Wait for the end of the process, at most `seconds`, then kill all that is left."""
        deadline = time.monotonic() + seconds
        while self.process_id is not None and time.monotonic() < deadline and still_waiting():
            time.sleep(LOOK_SECONDS)
        if self._process is not None:
            self.end()
