"""Worker ids: "<pod uid>/<nonce of the process>". A replaced pod gets a new uid, a restarted process a new nonce.

A nonce made by the agent begins with the worker's local rank, "<local rank>-", so that it is known which process a new one has
replaced.
"""

import secrets


def make_worker_id(pod_uid: str, nonce: str) -> str:
    """The id of a worker process.

    Args:
        pod_uid: the uid of the process's pod.
        nonce: unique to the process; without a "/".
    """
    return f"{pod_uid}/{nonce}"


def make_nonce(local_rank: int) -> str:
    """A new process's nonce. `local_rank` is the process's place among the workers of its pod."""
    return f"{local_rank}-{secrets.token_hex(4)}"


def pod_uid_of(worker_id: str) -> str:
    """The uid of the worker's pod; empty where the id names none."""
    return worker_id.rpartition("/")[0]


def local_rank_of(worker_id: str) -> str:
    """The worker's place in its pod, as digits; empty where the id does not say it."""
    local_rank, dash, _ = worker_id.rpartition("/")[2].partition("-")
    return local_rank if dash and local_rank.isdigit() else ""


def ordinal_of(pod_name: str) -> int:
    """The number at the end of a pod's name: its place in its StatefulSet; 0 for a name without one."""
    tail = pod_name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else 0
