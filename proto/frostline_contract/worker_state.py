"""The states of a worker as the controller sees it: each has one word, used inside the controller, on the wire and for people."""

from enum import StrEnum


class WorkerState(StrEnum):
    """The states of a worker. LEAVING: it has asked to go and still takes part. GONE: it is lost, or out of reach.

    MEMBER, JOINING and SPARE say for people what a worker does that is ALIVE: it has a place in the generation, waits for one, or
    has none. ENDED is a departure only: the process is known to have ended, so that it cannot come back.
    """

    ALIVE = "alive"
    MEMBER = "member"
    SPARE = "spare"
    JOINING = "joining"
    LEAVING = "leaving"
    GONE = "gone"
    ENDED = "ended"


SHOWN = (WorkerState.MEMBER, WorkerState.SPARE, WorkerState.JOINING, WorkerState.LEAVING, WorkerState.GONE)
"""The states that the status and the metrics show, in this order."""
OUTSIDE_THE_SHAPE = (WorkerState.SPARE, WorkerState.JOINING)
"""States of workers that are there and have no place in the generation."""
RANKED = frozenset((WorkerState.MEMBER, WorkerState.LEAVING))
"""States in which a worker may have ranks."""
