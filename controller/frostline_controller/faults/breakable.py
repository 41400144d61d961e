"""The interface of a cluster whose machines can be broken on request; only the local cluster has it."""

from typing import Protocol, runtime_checkable


@runtime_checkable
class Breakable(Protocol):
    """The operations of a cluster that planned faults of nodes and services need, beside those of every cluster."""

    def break_machine(self, kind: str, pod: str, seconds: float) -> None:
        """Carry out a planned fault of a node or service.

        Args:
            kind: kill_node, cut_node, kill_redis or kill_cache_server.
            pod: a pod on the node; empty for a service.
            seconds: how long a node is cut off.
        """
        ...
