"""What each generation's plan said of memory, beside what its members measured: for the status, the result and the report."""

from frostline_contract.plan import Plan
from frostline_controller.members.membership import Worker
from frostline_proto.v1 import control_pb2 as pb


def taken_bytes(memory: pb.MemoryUse) -> int:
    """All that is measured of a worker: its tensors' peak and its communicators."""
    return memory.peak_bytes + memory.communicator_bytes


class MemoryAccount:
    """Keeps the fullest worker of each generation. It is gone with the controller: nothing is decided by it."""

    def __init__(self) -> None:
        self._most: dict[str, dict[str, object]] = {}

    def note(self, plan: Plan | None, worker: Worker) -> None:
        """A member has told what it holds; of a generation that is over nothing is kept."""
        if plan is None or worker.memory is None or worker.generation != plan.generation:
            return
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

    def rows(self) -> list[dict[str, object]]:
        """One a generation, in the order of their plans."""
        return list(self._most.values())
