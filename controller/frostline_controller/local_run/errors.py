"""Exceptions that end a command or a call of the API early, with the exit status and the one line for the user."""

from pathlib import Path

from frostline_controller.local_run import exit_codes


class CommandError(Exception):
    """Ends the command with `code`; its text goes to standard error, without a traceback."""

    code = exit_codes.FAILED


class UserMistake(CommandError):
    """The user's request cannot be carried out: exit status USER_MISTAKE."""

    code = exit_codes.USER_MISTAKE


class NoRun(CommandError):
    """No controller of the run answers: exit status NO_RUN."""

    code = exit_codes.NO_RUN


class NotWritten(NoRun):
    """A command got no answer in time: it is answered once it is on disk, and may still be carried out.

    Args:
        folder: the run directory.
        message: the line for the user.
    """

    def __init__(self, folder: Path, message: str) -> None:
        super().__init__(message)
        self.folder = folder
