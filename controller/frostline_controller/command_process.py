"""A command of `frostline` in a process of its own, and how its end comes back to Python."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from frostline_controller.cli import exit_codes
from frostline_controller.cli.errors import CommandError
from frostline_controller.cluster.local.child import mortal, python_module

COMMAND_LINE = "frostline_controller.cli.main"


class RunError(CommandError):
    """The command did not succeed. code: its exit status (`frostline_controller.cli.exit_codes`); the text is its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class JobMistake(RunError, ValueError):
    """Arguments, job or data are wrong (exit status 2); the text says what and how to mend it."""


class Command:
    """A command, or another module of ours, that is carried out in a process of its own.

    The process has a session of its own: it hears of Ctrl-C from us alone, and so exactly once, whoever our terminal tells as
    well. Its standard output is kept where `quiet`, else it goes where ours goes.

    Args:
        words: of the command line, without `frostline`.
        quiet: keep its standard output.
        dies_with_us: the kernel kills it where we are killed. Then call from a thread that lives as long.
        module: that the words are given to.
        environment: of the process; None: ours.
    """

    def __init__(
        self, words: Sequence[str], quiet: bool, dies_with_us: bool = False, module: str = COMMAND_LINE,
        environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self._name = f"frostline {words[0]}" if module == COMMAND_LINE else module
        command = [*python_module(module), *words]
        self._process = subprocess.Popen(
            mortal(command) if dies_with_us else command,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if quiet else None, stderr=subprocess.PIPE, text=True,
            start_new_session=True, env=environment,
        )  # fmt: skip

    @property
    def running(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Ctrl-C: a run drains; the second time it stops at once."""
        if self.running:
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL; what it had started for itself dies with it."""
        if self.running:
            self._process.kill()
        self._process.wait()

    def wait(self, seconds: float) -> bool:
        """Whether it ends within so many seconds. Ctrl-C is passed on, as by `end`."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            try:
                self._process.wait(seconds)
            except KeyboardInterrupt:
                self.interrupt()
        return not self.running

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until it is so, or the process has ended."""
        while self.running and not condition():
            time.sleep(0.02)

    def end(self, also: Sequence[int] = ()) -> str:
        """Wait for its end and return its standard output. Ctrl-C is passed on, so that a run drains; twice stops it at once.

        Args:
            also: exit statuses that are no error beside 0.

        Raises:
            JobMistake, RunError: with what the command says.
        """
        said, complaints = None, None
        while complaints is None:
            try:
                said, complaints = self._process.communicate()
            except KeyboardInterrupt:
                self.interrupt()
        code = self._process.returncode
        if code == exit_codes.DONE or code in also:
            return said or ""
        if code == -signal.SIGINT:
            raise RunError(exit_codes.INTERRUPTED, f"`{self._name}` was interrupted")
        message = complaints.strip().removeprefix("frostline: ")
        if not message:
            message = (said or "").strip() or f"`{self._name}` ended with code {code}"
        raise (JobMistake if code == exit_codes.USER_MISTAKE else RunError)(code, message)


@contextlib.contextmanager
def mistakes() -> Iterator[None]:
    """What the library raises in this context comes out as the end of a command would."""
    try:
        yield
    except CommandError as error:
        raise (JobMistake if error.code == exit_codes.USER_MISTAKE else RunError)(error.code, str(error)) from None
    except ValueError as error:
        raise JobMistake(exit_codes.USER_MISTAKE, str(error)) from None
