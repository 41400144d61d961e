"""Exceptions that end a command or a call of the API early, with the exit status and the one line for the user."""

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
