"""The entry point of `frostline`. It imports almost nothing before it can answer Ctrl-C, which may come at the very start."""

import sys

from frostline_controller.local_run import exit_codes


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status (`exit_codes`)."""
    try:
        from frostline_controller.cli.dispatch import carry_out

        return carry_out(argv)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
