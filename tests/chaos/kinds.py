"""Kinds of faults by their effect on the workers that they hit, and phases of a step by the state of its vote."""

KILLED_RUN = frozenset(("kill_all", "kill_write"))
"""Every process at once: no process is left to report the end of the others."""
KILLED = frozenset(("kill_worker", "kill_in_checkpoint", "kill_pod", "kill_node", "kill_agent", "kill_preload"))
ENDING = KILLED | KILLED_RUN | {"device_error"}
SILENCING = frozenset(("stop", "deadlock", "device_hang", "cut_node"))
ERRORS = frozenset(("raise", "tear", "late_commit", "oom"))
AT_A_PLACE = frozenset(("kill_worker", "kill_in_checkpoint", "stop", "deadlock", "device_error", "device_hang")) | ERRORS
"""Kinds whose step is exact: the worker carries them out itself. (A worker cut off trains on until it is missed.)"""
BEFORE_THE_VOTE = frozenset(("load", "schedule", "audit", "exchange", "norms", "prepared", "vote"))

SPOILING = frozenset(("fail_write", "lie_write"))
ENDING_WELL = SPOILING | {"drain"}
