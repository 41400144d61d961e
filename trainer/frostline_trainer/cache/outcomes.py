"""What becomes of a request to Redis: the outcome for one key, and the faults of a connection."""

import enum


class Outcome(enum.Enum):
    """The result for one key: done, absent, refused for lack of memory, unusable (unexpected length or type), or late."""

    DONE = "done"
    ABSENT = "absent"
    REFUSED = "refused"
    UNUSABLE = "unusable"
    LATE = "late"


class ConnectionFault(Exception):
    """The connection cannot be used any more: refused, reset, timed out, or with an invalid reply."""


class ProtocolSurprise(ConnectionFault):
    """The peer's reply does not fit the Redis protocol."""


class CallIsOver(ConnectionFault):
    """The call's time is over, and the peer was still sending."""
