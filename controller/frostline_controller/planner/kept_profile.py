"""A worker's profile in the compact form that the controller keeps.

With a thousand workers of hundreds of units each, full records would take hundreds of megabytes, and to read one record would
take one turn of the event loop.
"""

from dataclasses import dataclass, field

import numpy as np

from frostline_contract.statistics import WorkerProfile
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import to_message, to_record


@dataclass(frozen=True, eq=False)
class KeptProfile:
    """A worker's profile as the controller keeps it: the serialized message, and its times as an array.

    Attributes:
        total_seconds: sum of `seconds`.
        seconds: two rows, forward and backward of each unit.
        message: the worker's own message, serialized.
    """

    device: str
    memory_bytes: int
    total_seconds: float
    seconds: np.ndarray = field(repr=False)
    message: bytes = field(repr=False)

    @staticmethod
    def of_message(message: plan_pb2.WorkerProfile) -> "KeptProfile":
        """Return the kept form of a received message; the message object itself is not kept."""
        forward = [unit.forward_seconds for unit in message.units]
        backward = [unit.backward_seconds for unit in message.units]
        total = sum(there + back for there, back in zip(forward, backward, strict=True))
        return KeptProfile(
            message.device, message.memory_bytes, total, np.array([forward, backward]), message.SerializeToString()
        )

    @staticmethod
    def of(profile: WorkerProfile) -> "KeptProfile":
        """Return the kept form of a profile that was not received as a message."""
        return KeptProfile.of_message(to_message(profile, plan_pb2.WorkerProfile))

    def record(self) -> WorkerProfile:
        """Return the whole profile as a record."""
        return to_record(plan_pb2.WorkerProfile.FromString(self.message), WorkerProfile)
