"""Annotation keys of the trainer StatefulSet: who writes, who reads, what absence means (docs/design.md 11.4)."""

PREFIX = "frostline.io/"

PLAN = PREFIX + "plan"
"""Written by the leading controller, read by its successors. The durable state: generation n, a prepared n+1, decisions;
compressed JSON. Absent: no plan was ever made."""

FENCE = PREFIX + "generation"
"""Written by the leading controller with every plan: "<incarnation>.<counter>". The field that a patch of PLAN tests.
Absent: no controller has ever led."""

STATE = PREFIX + "state"
"""Written by the leading controller with the durable state, read by people: waiting, running, draining, suspended, completed,
failed or cancelled. `kubectl wait --for=jsonpath=...` waits for it. Absent: not started."""

PROGRESS = PREFIX + "progress"
"""Written by the leading controller at most every 10 s, read by people and `frostline status`. Absent: not started."""

REQUESTED_WORKERS = PREFIX + "requested-workers"
"""Written by the controller from a user's scale request, or by the user; an upper limit. Absent: no limit but the job's."""

COMMAND = PREFIX + "command"
"""Written by a user (freeze N, unfreeze, suspend, resume, checkpoint, cancel), removed by the controller when taken."""
