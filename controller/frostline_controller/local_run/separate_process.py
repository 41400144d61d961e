"""A module of this project in a separate process, and the translation of its end into Python values and exceptions."""

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO

from frostline_controller.cluster.local.child import mortal, python_module
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.errors import CommandError


class RunError(CommandError):
    """The process failed. `code` is its exit status (`frostline_controller.local_run.exit_codes`)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class JobMistake(RunError, ValueError):
    """Arguments, job or data are wrong (exit status 2); the text names the mistake and the remedy."""


class _Reader:
    """Reads a pipe to its end in a thread: a process whose pipe is full stands still, and nobody else may read for hours."""

    def __init__(self, pipe: IO[str]) -> None:
        self._pipe, self._said = pipe, ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Wait for the pipe's end, and return all that came. A KeyboardInterrupt loses nothing: call it again."""
        self._thread.join()
        return self._said

    def _read(self) -> None:
        with self._pipe:
            self._said = self._pipe.read()


class SeparateProcess:
    """A module of this project that runs in a separate process.

    The process has a session of its own: it receives Ctrl-C from this object alone, and so exactly once, whichever processes the
    terminal signals. Its standard output is kept where `quiet`, else it goes to this process's.

    Args:
        module: the module.
        words: arguments of the module.
        request: the text on the standard input of the process; "": there is none.
        called: name of the process in messages; "": the module's.
        quiet: keep the standard output of the process.
        dies_with_us: the kernel kills the process when this process is killed. Then call from a thread that lives as long.
        environment: of the process; None: this process's.
    """

    def __init__(
        self, module: str, words: Sequence[str] = (), *, request: str = "", called: str = "", quiet: bool,
        dies_with_us: bool = False, environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._name = called or module
        command = [*python_module(module), *words]
        self._process = subprocess.Popen(
            mortal(command) if dies_with_us else command,
            stdin=subprocess.PIPE if request else subprocess.DEVNULL, stdout=subprocess.PIPE if quiet else None,
            stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True, env=environment,
        )  # fmt: skip
        assert self._process.stderr is not None
        self._complaints = _Reader(self._process.stderr)
        self._output = _Reader(self._process.stdout) if self._process.stdout is not None else None
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self._process.stdin as given:  # where it has ended already, `end` tells
                given.write(request)
            self._process.stdin = None

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Send Ctrl-C: a run drains; the second time it stops at once."""
        if self.running:
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Send SIGKILL; the process's own children die with it."""
        if self.running:
            self._process.kill()
        self._process.wait()

    def wait(self, seconds: float) -> bool:
        """Whether the process ends within `seconds`. Ctrl-C is passed on, as by `end`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            try:
                self._process.wait(seconds)
            except KeyboardInterrupt:
                self.interrupt()
        return not self.running

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds, or the process has ended. Ctrl-C is passed on, as by `end`."""
        while True:
            try:
                while self.running and not condition():
                    time.sleep(0.02)
                return
            except KeyboardInterrupt:
                self.interrupt()

    def end(self, also: Sequence[int] = ()) -> str:
        """Wait for the end of the process and return its standard output. Ctrl-C is passed on, so that a run drains; twice stops
        it at once.

        Args:
            also: exit statuses that are no error beside 0.

        Raises:
            JobMistake, RunError: with the command's message.
        """
        while True:
            try:
                code = self._process.wait()
                said, complaints = self._output.text() if self._output is not None else "", self._complaints.text()
                break
            except KeyboardInterrupt:
                self.interrupt()
        if code == exit_codes.DONE or code in also:
            return said
        if code == -signal.SIGINT:
            raise RunError(exit_codes.INTERRUPTED, f"`{self._name}` was interrupted")
        message = complaints.strip().removeprefix("frostline: ")
        if not message:
            message = said.strip() or f"`{self._name}` ended with code {code}"
        raise (JobMistake if code == exit_codes.USER_MISTAKE else RunError)(code, message)


@contextlib.contextmanager
def mistakes() -> Iterator[None]:
    """Translate the exceptions of the library in this context into those of a command's end."""
    try:
        yield
    except CommandError as error:
        raise (JobMistake if error.code == exit_codes.USER_MISTAKE else RunError)(error.code, str(error)) from None
    except ValueError as error:
        raise JobMistake(exit_codes.USER_MISTAKE, str(error)) from None
