"""The decisions that faults make late: those whose statistics or verdict cannot pass while a worker is cut off. Pure."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from tests.chaos.jobs import INTERVAL, LAG, STEPS
from tests.chaos.timeline import Hit

SLACK_SECONDS = 0.3
"""The time in which a held-back message passes after the end of the cut, in seconds."""


@dataclass(frozen=True)
class Lateness:
    """must: decision numbers that cannot have come in time. may: those that may not have."""

    must: frozenset[int]
    may: frozenset[int]


def lateness(
    hits: tuple[Hit, ...],
    committed: Mapping[int, float],
    members: Mapping[int, Set[str]],
    wait_seconds: float,
    patient_seconds: float,
) -> Lateness:
    """Return the decisions that must, and those that may, be late.

    committed: Unix time at which each step was committed. members: the workers that committed it. patient_seconds: a wait that no
    fault outlasts.
    """
    must: set[int] = set()
    may: set[int] = set()
    if wait_seconds >= patient_seconds:
        return Lateness(frozenset(), frozenset())
    for hit in hits:
        if hit.fault.kind != "cut":
            continue
        healed = hit.time_seconds + hit.fault.seconds
        for number in range(1, STEPS // INTERVAL + 1):
            read, due = number * INTERVAL, number * INTERVAL + LAG - 1
            if due >= STEPS or due not in committed:
                continue
            # The statistics leave after the vote that follows the interval's last step.
            sent_before = committed.get(read + 1, committed[due]) < hit.time_seconds
            # A worker that has left the shape meanwhile is not waited for.
            waited_for = bool(members.get(due, frozenset()) & set(hit.workers))
            if waited_for and not sent_before and committed[due] + wait_seconds < healed - SLACK_SECONDS:
                must.add(number)
            if committed[due] + wait_seconds < healed + SLACK_SECONDS + wait_seconds and committed[due] > hit.time_seconds:
                may.add(number)
    return Lateness(frozenset(must), frozenset(must | may))
