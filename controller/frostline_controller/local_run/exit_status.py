"""The exit status of a process that carries a request out: what it raises becomes one message, never a traceback."""

import errno
import io
import sys
from collections.abc import Callable

from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.errors import CommandError
from frostline_controller.local_run.output import complain, silence


def exit_status(act: Callable[[], int]) -> int:
    """Call `act` and return its exit status (`exit_codes`), or that of the mistake or failure that it raises."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may have characters that this terminal lacks
    try:
        code = act()
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except CommandError as error:
        complain(str(error))
        return error.code
    except ValueError as error:
        # Every part of Frostline raises ValueError for invalid input.
        complain(str(error))
        return exit_codes.USER_MISTAKE
    except BrokenPipeError:
        # The reader of an answer has stopped reading (`frostline job --explain | head`). A command that trains writes through a
        # terminal that is switched off instead (local_run/terminal.py), so it does not raise this error.
        silence(sys.stdout)
        return exit_codes.DONE
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            complain("a path is longer than this system allows; give a shorter one")
            return exit_codes.USER_MISTAKE
        complain(str(error))
        silence(sys.stdout)
        return exit_codes.FAILED
