"""The id of a worker: "<pod uid>/<nonce of the process>". A pod that is replaced has another uid, a process another nonce."""


def make_worker_id(pod_uid: str, nonce: str) -> str:
    """The id of a worker process.

    pod_uid: the uid of its pod. nonce: the process's own, without a "/".
    """
    return f"{pod_uid}/{nonce}"


def pod_uid_of(worker_id: str) -> str:
    """The uid of the worker's pod; empty where the id names none."""
    return worker_id.rpartition("/")[0]
