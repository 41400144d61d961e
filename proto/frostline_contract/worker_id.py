"""The id of a worker: "<pod uid>/<nonce of the process>". A pod that is replaced has another uid, a process another nonce."""


def make_worker_id(pod_uid: str, nonce: str) -> str:
    return f"{pod_uid}/{nonce}"


def pod_uid_of(worker_id: str) -> str:
    """The uid of the worker's pod; empty where the id names none."""
    return worker_id.rpartition("/")[0]
