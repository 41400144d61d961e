"""Entry point of `frostline`: parses the arguments, carries the command out, turns its end into an exit status."""

import importlib
import os
import sys
from collections.abc import Sequence

from frostline_controller.cli import exit_codes
from frostline_controller.cli.arguments import build_parser
from frostline_controller.cli.errors import CommandError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status (`exit_codes`). A user's mistake is one message, never a traceback."""
    arguments = build_parser().parse_args(argv)
    module_name, function_name = arguments.run_command.split(":")
    # Only what the command needs is imported, so that `frostline status` answers at once.
    module = importlib.import_module(f"frostline_controller.cli.{module_name}")
    try:
        return int(getattr(module, function_name)(arguments))
    except CommandError as error:
        print(f"frostline: {error}", file=sys.stderr)
        return error.code
    except ValueError as error:
        # ValueError is how every part of Frostline says that what it was given cannot be.
        print(f"frostline: {error}", file=sys.stderr)
        return exit_codes.USER_MISTAKE
    except BrokenPipeError:
        # The reader of our output has seen enough (`frostline job --explain | head`); there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.DONE
    except OSError as error:
        print(f"frostline: {error}", file=sys.stderr)
        return exit_codes.FAILED
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
