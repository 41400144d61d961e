"""Entry point of `frostline`. It imports next to nothing before it can answer Ctrl-C, which may come in its first moment."""

import sys

from frostline_controller.cli import exit_codes


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status (`exit_codes`)."""
    try:
        from frostline_controller.cli.dispatch import carry_out

        return carry_out(argv)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
