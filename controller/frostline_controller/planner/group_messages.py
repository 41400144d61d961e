"""The cost of a tensor that crosses stages between groups of workers: sent in shares, one a member, then gathered."""

from dataclasses import dataclass

from frostline_contract.statistics import LinkProfile


@dataclass(frozen=True)
class GroupMessages:
    """The way of a tensor from one group to the next.

    Attributes:
        sent: bytes that a member sends for each byte of a unit's `output_bytes`.
        gather_seconds_per_byte: seconds of the receivers' gather, for each of these bytes.
        gather_latency_seconds: seconds of a gather of no bytes.
    """

    sent: float
    gather_seconds_per_byte: float
    gather_latency_seconds: float

    def over(self, link: LinkProfile) -> LinkProfile:
        """Return a link that takes as long for the whole tensor as the members' links take for their shares and the gather.

        Args:
            link: a member's own link, measured while the member's whole group sent.
        """
        seconds_per_byte = self.sent / link.bandwidth_bytes_per_second + self.gather_seconds_per_byte
        return link.model_copy(
            update={
                "latency_seconds": link.latency_seconds + self.gather_latency_seconds,
                "bandwidth_bytes_per_second": 1 / seconds_per_byte,
            }
        )
