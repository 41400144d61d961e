"""Parsing of the arguments, the call of the command, and its exit status."""

import errno
import importlib
import io
import sys
from collections.abc import Sequence

from frostline_controller.cli.arguments import build_parser
from frostline_controller.local_run import exit_codes
from frostline_controller.local_run.errors import CommandError
from frostline_controller.local_run.output import complain, silence


def carry_out(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (`exit_codes`). A user's mistake is one message, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a path may have characters that this terminal lacks
    try:
        arguments = build_parser().parse_args(argv)
        module_name, function_name = arguments.run_command.split(":")
        # Only the command's own module is imported, so that `frostline status` answers at once.
        module = importlib.import_module(f"frostline_controller.cli.{module_name}")
        code = int(getattr(module, function_name)(arguments))
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
