"""The states of a run: each has one word, used on the wire, in the durable state, in files and for people."""

from enum import StrEnum

_OLDER_WORDS = {"drained": "suspended"}
"""Words that earlier versions wrote into result.json and the epoch object, and the present ones."""


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
"""States in which nothing happens until the run is resumed."""
RESUMABLE = ENDED - {RunStatus.COMPLETED}
"""States from which a run can be resumed."""
TRAINING = frozenset((RunStatus.RUNNING, RunStatus.DRAINING))
"""States in which the run has a plan that workers compute."""


def status_word(text: str) -> str:
    """The state that a file or message names, by its present word; an unknown word, or an empty one, is returned unchanged."""
    return _OLDER_WORDS.get(text, text)
