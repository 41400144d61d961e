"""The exit statuses of `frostline`. Scripts rely on them; docs/run-directory.md has the same table."""

DONE = 0
"""The run completed, or the command was answered."""

FAILED = 1
"""The run failed, was cancelled, or a check found a difference."""

USER_MISTAKE = 2
"""Arguments, job file or data are wrong; one line says what and how to mend it. Nothing was started or changed."""

DRAINED = 3
"""The run stopped at a checkpoint and can go on: `frostline resume DIR`."""

NO_RUN = 4
"""The run is not finished and its controller does not answer."""

CRASH_LOOP = 5
"""The run was stopped because it failed at the same step over and over; the message has the first error's traceback."""

INTERRUPTED = 130
"""Ctrl-C twice, or a stop that no controller answered: everything was stopped at once; `frostline resume` starts from the last
checkpoint."""

MEANING = {
    DONE: "done",
    FAILED: "the run failed, or a check found a difference",
    USER_MISTAKE: "a mistake in arguments, job file or data",
    DRAINED: "stopped at a checkpoint; `frostline resume DIR` goes on",
    NO_RUN: "no controller of an unfinished run answers",
    CRASH_LOOP: "failed at the same step over and over",
    INTERRUPTED: "stopped at once (Ctrl-C twice)",
}
