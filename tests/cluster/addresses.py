"""The loopback addresses of test clusters: each cluster has a 127.i.0.0/16 of its own, each pod an address in it.

The API server refuses loopback addresses of endpoints, so it is given 10.i.k.p for the real 127.i.k.p: pods in 10.i.k.0/24 for
node k, Services in 10.i.255.0/24. Nothing is ever sent to an address that begins with 10. A Service has another real address on
each node, 127.i.(128 + k).s, so that the node of a connection is known. Linux routes all of 127.0.0.0/8 to itself.
"""

import random
import socket
from dataclasses import dataclass

CLAIM_PORT = 47001
NODES_MAX = 16


@dataclass(frozen=True)
class Addresses:
    """The addresses of one cluster. number: the i, held against other clusters of this machine until `release`."""

    number: int
    _claim: socket.socket

    @staticmethod
    def claim() -> "Addresses":
        """Claim a free number. Raises OSError where there is none."""
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
        """Return the range from which the API server gives addresses to Services."""
        return f"10.{self.number}.255.0/24"

    def pod(self, node: int, count: int) -> str:
        """Return the address of the node's `count`th pod, as the API server has it; addresses repeat after 250."""
        return f"10.{self.number}.{node}.{count % 250 + 1}"

    def node(self, node: int) -> str:
        """Return the address at which the node serves logs."""
        return f"127.{self.number}.{node}.254"

    def service(self, node: int, cluster_ip: str) -> str:
        """Return the address of a Service for the node's pods."""
        return f"127.{self.number}.{128 + node}.{cluster_ip.rsplit('.', 1)[1]}"

    def api(self, node: int) -> str:
        """Return the address of the API server for the node and its pods: the Service `kubernetes`, which is always the first."""
        return self.service(node, f"10.{self.number}.255.1")


def real(seen: str) -> str:
    """Return the real address of a pod, from the one that the API server has."""
    return "127." + seen.split(".", 1)[1]
