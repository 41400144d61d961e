"""A program that is started again when it ends: the life of one child process at a time, and when the next one may start.

Pods and services of the local cluster are kept this way. What an end means (a success, a mistake, one more try) is theirs to say;
an agent's workers are children of its preload process and share the back-off only.
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

    backoff: counts the ends in a row that came too soon. lived_seconds: of the last process that ended.
    """

    def __init__(self, env: dict[str, str], log: Path, folder: Path, backoff: Backoff) -> None:
        """Make the supervisor of one process, which is not started yet.

        log: file that its output is appended to. folder: what it works in.
        """
        self.env, self.log, self.backoff = env, log, backoff
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._next_start = 0.0
        self.lived_seconds = 0.0

    @property
    def process_id(self) -> int | None:
        """None while no process runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def present(self) -> bool:
        """A process runs, or has ended and its end was not taken yet."""
        return self._process is not None

    def start_if_due(self, argv: list[str]) -> bool:
        """Start the program where none is present and its time has come. True where it was started. Raises OSError."""
        now = time.monotonic()
        if self._process is not None or now < self._next_start:
            return False
        self._process, self._started = start_child(argv, self.env, self.log, self._folder), now
        return True

    def take_end(self) -> int | None:
        """The exit code of a process that has ended, once; what it has left behind is killed. None: nothing has ended."""
        if self._process is None or self._process.poll() is None:
            return None
        return self.end()

    def end(self) -> int:
        """SIGKILL to all of the process that is present; its exit code."""
        assert self._process is not None
        kill_group(self._process)
        code = self._process.returncode
        self._process, self.lived_seconds = None, time.monotonic() - self._started
        return code

    def wait_after_failure(self) -> float:
        """The last end was a failure: the next start waits for so many seconds."""
        wait = self.backoff.failed(self.lived_seconds)
        self.wait(wait)
        return wait

    def wait(self, seconds: float) -> None:
        """The next start comes in so many seconds, and no sooner."""
        self._next_start = time.monotonic() + seconds

    def signal(self, number: int) -> None:
        """Send the present process this signal, where there is one."""
        if self._process is not None:
            signal_child(self._process, number)

    def kill(self) -> None:
        """SIGKILL to all of it; returns when it has ended. Its end is still to be taken."""
        if self._process is not None:
            kill_group(self._process)

    def strike(self) -> None:
        """SIGKILL to all of it, and wait for nothing."""
        if self._process is not None:
            strike_group(self._process)

    def end_within(self, seconds: float, still_waiting: Callable[[], bool] = lambda: True) -> None:
        """Wait for its end, at most so long, then kill what is left."""
        deadline = time.monotonic() + seconds
        while self.process_id is not None and time.monotonic() < deadline and still_waiting():
            time.sleep(LOOK_SECONDS)
        if self._process is not None:
            self.end()
