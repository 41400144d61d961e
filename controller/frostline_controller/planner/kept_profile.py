"""A worker's measurements as the controller keeps them: of a thousand workers with hundreds of units each, records would take
hundreds of megabytes, and one turn of the event loop each to read."""

from dataclasses import dataclass, field

import numpy as np

from frostline_contract.statistics import WorkerProfile
from frostline_proto.v1 import plan_pb2
from frostline_rpc.convert import to_message, to_record


@dataclass(frozen=True, eq=False)
class KeptProfile:
    """A worker's profile as the controller keeps it: the message, and its times as an array.

    message: the worker's own, serialized. seconds: two rows, forward and backward of each unit. total_seconds: their sum.
    """

    device: str
    memory_bytes: int
    total_seconds: float
    seconds: np.ndarray = field(repr=False)
    message: bytes = field(repr=False)

    @staticmethod
    def of_message(message: plan_pb2.WorkerProfile) -> "KeptProfile":
        """What arrived; the message itself is not kept."""
        forward = [unit.forward_seconds for unit in message.units]
        backward = [unit.backward_seconds for unit in message.units]
        total = sum(there + back for there, back in zip(forward, backward, strict=True))
        return KeptProfile(
            message.device, message.memory_bytes, total, np.array([forward, backward]), message.SerializeToString()
        )

    @staticmethod
    def of(profile: WorkerProfile) -> "KeptProfile":
        """The kept form of a profile that was not received as a message."""
        return KeptProfile.of_message(to_message(profile, plan_pb2.WorkerProfile))

    def record(self) -> WorkerProfile:
        """The whole profile."""
        return to_record(plan_pb2.WorkerProfile.FromString(self.message), WorkerProfile)
