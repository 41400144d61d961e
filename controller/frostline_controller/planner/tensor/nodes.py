"""Seconds of an axis' traffic on nodes: ranks of one node have fast links, and all traffic out of a node shares one link."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Nodes:
    """Equal nodes, with their links.

    Attributes:
        devices: of a node.
        within: bytes a second that a rank receives from its own node.
        between: bytes a second that a rank receives from other nodes while all ranks of its node do, i.e. its share of the
            node's link.
        within_call, between_call: seconds of a collective of no bytes.
    """

    devices: int
    within: float
    between: float
    within_call: float = 0.0
    between_call: float = 0.0

    def seconds(self, received: float, degree: int, stride: int, calls: float = 0.0) -> float:
        """Return the seconds until each rank has received its bytes along an axis.

        Args:
            received: bytes a rank.
            degree: ranks of a line along the axis.
            stride: distance in rank of two neighbours on the axis; a node has `devices` consecutive ranks.
            calls: collectives that carry the bytes.
        """
        if degree == 1:
            return 0.0
        if degree * stride <= self.devices:
            return received / self.within + calls * self.within_call
        at_home = max(1, self.devices // stride)  # ranks of the line in one node, the rank itself included
        share = (at_home - 1) / (degree - 1)
        return received * (share / self.within + (1 - share) / self.between) + calls * self.between_call
