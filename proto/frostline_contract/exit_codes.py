"""Exit codes of a run's workers, agents and preload processes, as docs/troubleshooting.md lists them.

The command `frostline` has codes of its own (frostline_controller/local_run/exit_codes.py).
"""

DONE = 0
"""The process ended as it was asked to."""

CRASH_LOOP = 1
"""Of an agent: its worker crashed repeatedly."""

USER_MISTAKE = 2
"""The job, its data or the machine is wrong; the controller has the message."""

REFUSED = 3
"""The controller has refused this process."""

FAULT = 70
"""An error in the process itself, with a traceback in its log."""

DEVICE = 71
"""The process's device failed or does not answer: none of the process's state can be trusted, and only a new process may use
the device."""

FINAL = frozenset({DONE, USER_MISTAKE, REFUSED})
"""Exit codes of a worker that is not started again. The controller knows its end already (it has released or refused the worker,
or received its message), so nobody else reports it."""
