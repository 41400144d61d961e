"""Exit codes of a run's workers, agents and preload processes, as docs/troubleshooting.md lists them.

The command `frostline` has codes of its own (frostline_controller/cli/exit_codes.py).
"""

DONE = 0
"""Ended as told."""

CRASH_LOOP = 1
"""Of an agent: a worker crashed over and over."""

USER_MISTAKE = 2
"""The job, its data or the machine is not as it must be; the text is at the controller."""

REFUSED = 3
"""The controller does not take this process in."""

FAULT = 70
"""A fault of the process's own, with a traceback in its log."""

DEVICE = 71
"""Its device failed or does not answer: nothing in this process can be trusted, and only another process may use the device."""

FINAL = frozenset({DONE, USER_MISTAKE, REFUSED})
"""Of a worker that the controller has let go, refused, or heard from: nobody else tells its end, and it is not started again."""
