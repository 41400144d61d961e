"""The process that carries out a request from its standard input; only one that asks for it starts it (`separate_process.py`).

It imports almost nothing before it can answer Ctrl-C, which may come at the very start.
"""

import importlib
import sys
from typing import Any

from frostline_controller.local_run import exit_codes


def carry_out_request(requests: str) -> int:
    """Carry out the request on standard input; return its exit status (`exit_codes`), which is that of the command.

    Args:
        requests: the module with the request's types, whose `read_request` reads it and whose `carry_out` does it.
    """

    def act() -> int:
        module: Any = importlib.import_module(requests)
        return int(module.carry_out(module.read_request(sys.stdin.read())))

    try:
        from frostline_controller.local_run.exit_status import exit_status

        return exit_status(act)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED
