"""Annotation keys of the trainer StatefulSet. Each says who writes it, who reads it, and what its absence means.

See docs/design.md 11.4.
"""

PREFIX = "frostline.io/"

PLAN = PREFIX + "plan"
"""The run's durable state as compressed JSON: generation n, a prepared generation n + 1, and the decisions. Written by the
leading controller, read by its successors. Absent: no plan was ever made."""

FENCE = PREFIX + "generation"
"""The newest generation, "<incarnation>.<counter>". Written by the leading controller with every plan; a patch of PLAN is
conditional on its value. Absent: no controller has ever led."""

STATE = PREFIX + "state"
"""The run's state: waiting, running, draining, suspended, completed, failed or cancelled. Written by the leading controller with
the durable state, read by people, also with `kubectl wait --for=jsonpath=...`. Absent: not started."""

PROGRESS = PREFIX + "progress"
"""The run's progress. Written by the leading controller at most every 10 s, read by people and `frostline status`. Absent: not
started."""

REQUESTED_WORKERS = PREFIX + "requested-workers"
"""Upper limit of the number of workers. Written by the controller from a user's scale request, or by the user. Absent: only the
job's limit holds."""

REQUESTED_WORKERS_MAX = 65536
"""The highest limit that may be requested; a larger number is a typing mistake. It is also the most that a job may have."""

COMMAND = PREFIX + "command"
"""A user's command: freeze N, unfreeze, resize N, suspend, resume, checkpoint or cancel. The controller removes it once it is
carried out."""
