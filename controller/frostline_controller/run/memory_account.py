"""The predicted memory of each generation's plan beside the measured memory of its members: for the status, the result and the
report.

Where the job limits a worker's memory, the measured peak is compared with the limit, since the planner observes it only by
prediction.
"""

from dataclasses import dataclass

from frostline_contract.plan import Plan
from frostline_controller.members.membership import Worker
from frostline_proto.v1 import control_pb2 as pb


def taken_bytes(memory: pb.MemoryUse) -> int:
    """Return all measured bytes of a worker: its tensors' peak and its communicators."""
    return memory.peak_bytes + memory.communicator_bytes


@dataclass(frozen=True)
class MostTensors:
    """The most bytes that a member's tensors and communicators took in one generation."""

    worker_id: str
    bytes: int


class MemoryAccount:
    """The fullest worker of each generation. It is lost with the controller, since no decision depends on it."""

    def __init__(self) -> None:
        self._most: dict[str, dict[str, object]] = {}
        self._tensors: dict[str, MostTensors] = {}

    def note(self, plan: Plan | None, worker: Worker) -> None:
        """Take a member's report of its memory; reports of a generation that is over are ignored."""
        if plan is None or worker.memory is None or worker.generation != plan.generation:
            return
        self._note_tensors(plan, worker, worker.memory)
        known, taken = self._most.get(str(plan.generation)), taken_bytes(worker.memory)
        if known is not None and taken <= int(str(known["peak_bytes"])):
            return
        self._most[str(plan.generation)] = {
            "generation": str(plan.generation),
            "planned_bytes": plan.placement.predicted_peak_bytes,
            "peak_bytes": taken,
            "worker": worker.worker_id,
            "device": worker.device.name if worker.device is not None else "cpu",
            "communicators": worker.memory.communicators,
            "communicator_bytes": worker.memory.communicator_bytes,
            "limit_bytes": worker.memory.limit_bytes,
        }

    def _note_tensors(self, plan: Plan, worker: Worker, memory: pb.MemoryUse) -> None:
        held = memory.tensor_bytes + memory.communicator_bytes if memory.tensor_bytes else 0
        known = self._tensors.get(str(plan.generation))
        if held and (known is None or held > known.bytes):
            self._tensors[str(plan.generation)] = MostTensors(worker.worker_id, held)

    def most_tensors(self, plan: Plan | None) -> MostTensors | None:
        """Return the maximum of a generation; None where none of its members has reported any."""
        return self._tensors.get(str(plan.generation)) if plan is not None else None

    def rows(self) -> list[dict[str, object]]:
        """Return one row for each generation, in the order of their plans."""
        most = {generation: self._tensors.get(generation) for generation in self._most}
        return [{**row, "tensor_bytes": one.bytes if (one := most[name]) else 0} for name, row in self._most.items()]
