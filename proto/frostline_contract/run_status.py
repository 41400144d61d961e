"""Where a run stands: one word a state, on the wire, in the durable state, in files and for people."""

from enum import StrEnum

_OLDER_WORDS = {"drained": "suspended"}
"""What earlier versions wrote into result.json and the epoch object."""


class RunStatus(StrEnum):
    """The states of a run. WAITING: there is no first plan yet. DRAINING: the run is asked to stop and goes on to a checkpoint.

    SUSPENDED: the run has stopped at a checkpoint. A result (result.json, the end in events.jsonl) has one of the last four.
    """

    WAITING = "waiting"
    RUNNING = "running"
    DRAINING = "draining"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset((RunStatus.SUSPENDED, RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED))
"""Nothing goes on in the run until it is resumed."""
RESUMABLE = ENDED - {RunStatus.COMPLETED}
"""What a run can be resumed from."""
TRAINING = frozenset((RunStatus.RUNNING, RunStatus.DRAINING))
"""The run has a plan that workers compute."""


def status_word(text: str) -> str:
    """The state that a file or message names, by today's word; an unknown word, or none, as it is."""
    return _OLDER_WORDS.get(text, text)
