"""Counts the memory of a member's tensors on a CPU, if the job limits it (`placement.worker_memory_bytes`).

A CPU has no counting allocator, and its process also holds interpreter, libraries and data. So a step's tensors are counted
storage by storage, in the first step of a generation and in the first after each freeze, when all gradient memory is new. Unit
replicas, which this member keeps for others in host memory, are not counted, as on a GPU.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from torch import nn

from frostline_contract.pieces import Pieces
from frostline_trainer.memory import LiveBytes
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.local_shards import weight_bytes
from frostline_trainer.step.optimizer import Moments


class Weighing:
    """The count of one member's tensors in one generation.

    Nothing is counted without a limit, on a GPU (its allocator counts), and with `training.compile`, since counting operations
    would change the compiled programs.

    tensor_bytes: the peak of weights, moments, gradients and activations; 0 before it was counted.
    """

    def __init__(self, context: RunContext) -> None:
        training, limit = context.job.training, context.job.placement.worker_memory_bytes
        self._device = context.device
        self._wanted = limit is not None and context.device.type == "cpu" and not training.compile
        self._meter: LiveBytes | None = None
        self._counted = 0
        self.tensor_bytes = 0

    def begin(self) -> None:
        """Count the next step; called when the gradient memory of earlier steps has been freed."""
        self._meter = LiveBytes(self._device) if self._wanted else None

    def part(self) -> AbstractContextManager[object]:
        """A context in which the tensors of a part of the step are counted."""
        return self._meter if self._meter is not None else nullcontext()

    def end(self) -> None:
        """End the count of a step: its gradients are complete."""
        if self._meter is not None:
            self._counted, self._meter = self._meter.peak, None

    def settle(self, units: Iterable[tuple[int, nn.Module]], moments: Moments, table: Pieces, gathered: int = 0) -> None:
        """Add weights and moments to the count, at the begin of the next step: the counted step has created all moments by then.

        Args:
            units: (index, unit) of the units that this member holds.
            moments: of all units.
            table: of their pieces.
            gathered: the most bytes that gathers of weights have held.
        """
        if self._counted:
            held = dict(units)
            state = gathered + sum(map(weight_bytes, held.values()))
            kept = [state for (piece, _), state in moments.items() if table.unit_of(piece) in held]
            state += sum(tensor.nbytes for one in kept for tensor in one.values())
            self.tensor_bytes, self._counted = max(self.tensor_bytes, self._counted + state), 0
