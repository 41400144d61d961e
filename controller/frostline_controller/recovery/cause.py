"""The cause of a failure: in words for people, and whether the run itself caused it (then its retry budget is charged)."""

from collections.abc import Collection

from frostline_controller.members.membership import Membership
from frostline_controller.recovery.facts import Failure, WrongBits
from frostline_controller.recovery.reports import Recovery, last_line
from frostline_controller.run.facts import RunFacts
from frostline_controller.run.outbox import Outbox
from frostline_controller.run.store import RunStore

CAUSES_NAMED = 3
PLACES_NAMED = 8
"""Workers whose node and device an event names in words; its detail names all. The cluster keeps a message's first kilobyte."""
MARKS_OF_A_PEER = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "NCCL", "interrupted")
"""An error text with one of these comes from a collective operation that lost a peer."""
MARKS_OF_ITS_OWN = ("out of memory", "OutOfMemoryError", "Duplicate GPU", "invalid usage")


def cause_of(recovery: Recovery, members: Membership, failure: Failure) -> str:
    """Return the cause in words: the workers that ended, hang or do not answer; without such workers, the first error."""
    name = members.name_of

    def why(worker_id: str) -> str:
        worker = members.get(worker_id)
        return f": {worker.why_gone}" if worker is not None and worker.why_gone else ""

    planned = set(failure.current.participants) | set(failure.prepared.participants if failure.prepared else ())
    causes = [f"{name(worker_id)} is excluded: {reason}" for worker_id, reason in sorted(recovery.excluded.items())]
    causes += [f"{name(worker_id)} is gone{why(worker_id)}" for worker_id in sorted(failure.ended & planned)]
    silent = sorted(one for one in failure.silent & planned if not recovery.goes_with_excluded(one))
    causes += [f"{name(worker_id)} does not answer{why(worker_id)}" for worker_id in silent]
    if not causes and (first := first_error(recovery)) is not None:
        causes = [f"{name(first[0])} reports: {last_line(first[1])}"]
    more = f" and {len(causes) - CAUSES_NAMED} more" if len(causes) > CAUSES_NAMED else ""
    return "; ".join(causes[:CAUSES_NAMED]) + more if causes else recovery.reason


def first_error(recovery: Recovery) -> tuple[str, str] | None:
    """Return the worker that failed first, and its traceback; None without errors. Errors about a lost peer count last."""
    own = ((worker_id, text) for worker_id, text in recovery.errors.items() if not of_a_peer(text))
    return next(own, next(iter(recovery.errors.items()), None))


def of_its_own(recovery: Recovery, members: Membership, pods: Collection[str], failure: Failure) -> tuple[bool, str]:
    """Return whether the run itself caused this failure (by an error, a hang, or a crash in a pod that stays), and the error.

    Hangs count: the same step may hang again each time, or always be too slow for its deadline. Errors do not count where a
    worker has ended or is silent: the loss of one peer causes errors in the collectives of all others.

    Args:
        recovery: the failure.
        members: the run's workers.
        pods: uids of the pods that the run has.
        failure: the facts from which the answer was made.

    Returns:
        Whether the run caused the failure, and the traceback of the worker that failed (empty where there is none).
    """
    crashed = any(not members.was_taken(worker_id, pods) for worker_id in failure.ended)
    unexplained = bool(recovery.errors) and not failure.ended and not failure.silent
    errors = [members.error_of(worker_id) for worker_id in sorted(failure.ended)]
    errors += [reason for _, reason in sorted(recovery.excluded.items())]
    first = first_error(recovery)
    text = next((text for text in (*errors, first[1] if first else "") if text), "")
    return crashed or unexplained or bool(recovery.excluded), text


def of_a_peer(text: str) -> bool:
    """Whether an error came from a collective that lost a peer; NCCL's errors about memory or wrong use did not."""
    return any(mark in text for mark in MARKS_OF_A_PEER) and not any(mark in text for mark in MARKS_OF_ITS_OWN)


def wrong_bits_of(recovery: Recovery, members: Membership) -> WrongBits:
    """Return the wrong bits that were reported: whose they are, or may be, with nodes and devices, so that these can be checked.

    Args:
        recovery: the failure, with the differences that were found.
        members: the run's workers.
    """
    said = dict(recovery.distrusted_detail)
    among = said.pop("holders", "").split()
    named = [worker for worker in map(members.get, sorted(recovery.suspects)) if worker is not None]
    holders = [worker for worker in map(members.get, among) if worker is not None]
    detail: dict[str, object] = {
        **said,
        "workers": sorted(recovery.suspects),
        "pods": [worker.pod_name for worker in named],
        "nodes": [worker.failure_domain for worker in named],
        "devices": [worker.profile.device for worker in named],
    }
    if among:
        detail["holders"] = [
            {"worker": one.worker_id, "pod": one.pod_name, "node": one.failure_domain, "device": one.profile.device}
            for one in holders
        ]
    places = [f"{one.pod_name} is on node {one.failure_domain}, device {one.profile.device}" for one in named or holders]
    more = f" and {len(places) - PLACES_NAMED} more" if len(places) > PLACES_NAMED else ""
    listed = "; ".join(places[:PLACES_NAMED]) + more
    return WrongBits(
        first_step=recovery.distrusted_from, reason=listed if named or not listed else f"one of: {listed}", detail=detail
    )


async def announce_wrong_bits(facts: RunFacts, store: RunStore, outbox: Outbox) -> None:
    """Write the events of wrong bits that durable plans go back from, unless they are written. Never fails.

    Called in each round: an event is announced though an act after the plan's write failed, or its controller died there.
    """
    newest = facts.state.wrong_bits
    for found in (*newest.earlier, newest) if newest is not None else ():
        if not store.events.holds("wrong_bits", found.step, found.lineage):
            place = {"step": found.step, "lineage": found.lineage, "generation": found.generation}
            await outbox.event("wrong_bits", found.reason, **place, detail=found.detail)
