"""Who is where on loopback: each cluster has a 127.i.0.0/16 of its own, each pod an address in it.

The API server refuses loopback addresses of endpoints, so it hears 10.i.k.p of what is really at 127.i.k.p: pods in
10.i.k.0/24 for node k, Services in 10.i.255.0/24. Nothing is ever sent to an address that begins with 10. A Service has another
real address on each node, 127.i.(128 + k).s, so that it is known from which node a connection comes. Linux routes all of
127.0.0.0/8 to itself.
"""

import random
import socket
from dataclasses import dataclass

CLAIM_PORT = 47001
NODES_MAX = 16


@dataclass(frozen=True)
class Addresses:
    """number: the i. Held, against other clusters of this machine, until `release`."""

    number: int
    _claim: socket.socket

    @staticmethod
    def claim() -> "Addresses":
        """Raises OSError where no number is free."""
        numbers = list(range(16, 250))
        random.shuffle(numbers)
        for number in numbers:
            claim = socket.socket()
            try:
                claim.bind((f"127.{number}.254.1", CLAIM_PORT))
                claim.listen()
            except OSError:  # another cluster has it
                claim.close()
                continue
            return Addresses(number, claim)
        raise OSError(f"all of the {len(numbers)} loopback networks 127.i.0.0/16 are taken (port {CLAIM_PORT})")

    def release(self) -> None:
        self._claim.close()

    @property
    def services(self) -> str:
        """What the API server gives Services addresses from."""
        return f"10.{self.number}.255.0/24"

    def pod(self, node: int, count: int) -> str:
        """As the API server hears it, of the node's `count`th pod; they come round again after 250."""
        return f"10.{self.number}.{node}.{count % 250 + 1}"

    def node(self, node: int) -> str:
        """Where it serves logs."""
        return f"127.{self.number}.{node}.254"

    def service(self, node: int, cluster_ip: str) -> str:
        """Where the node's pods find a Service."""
        return f"127.{self.number}.{128 + node}.{cluster_ip.rsplit('.', 1)[1]}"

    def api(self, node: int) -> str:
        """Where the node and its pods find the API server: at the Service `kubernetes`, which is always the first."""
        return self.service(node, f"10.{self.number}.255.1")


def real(heard: str) -> str:
    """Where a pod really is, by the address that the API server has."""
    return "127." + heard.split(".", 1)[1]
