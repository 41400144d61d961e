"""Parsing of the arguments, the call of the command, and its exit status."""

import importlib
from collections.abc import Sequence

from frostline_controller.cli.arguments import build_parser
from frostline_controller.local_run.exit_status import exit_status


def carry_out(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (`exit_codes`). A user's mistake is one message, never a traceback."""
    return exit_status(lambda: _command(argv))


def _command(argv: Sequence[str] | None) -> int:
    arguments = build_parser().parse_args(argv)
    module_name, function_name = arguments.run_command.split(":")
    # Only the command's own module is imported, so that `frostline status` answers at once.
    module = importlib.import_module(f"frostline_controller.cli.{module_name}")
    return int(getattr(module, function_name)(arguments))
