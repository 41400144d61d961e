"""The process of one sweep: `python -m frostline_controller.sweep` carries out the request on its standard input.

It imports almost nothing before it can answer Ctrl-C, which may come at the very start.
"""

import sys

from frostline_controller.local_run import exit_codes


def main() -> int:
    """Carry the request out and return its exit status (`exit_codes`), which is that of `frostline sweep`."""
    try:
        from frostline_controller.local_run.exit_status import exit_status

        return exit_status(_act)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def _act() -> int:
    from frostline_controller.sweep.requests import carry_out, read_request

    return carry_out(read_request(sys.stdin.read()))


if __name__ == "__main__":
    sys.exit(main())
