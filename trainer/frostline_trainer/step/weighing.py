"""What a member's tensors take on a CPU, where the job says how much a worker may use (`placement.worker_memory_bytes`).

A CPU has no allocator that counts, and its process holds interpreter, libraries and data besides. So a step's tensors are
counted storage by storage, in the first step of a generation and in the first after each freeze: all gradient memory is new in
those. What lies in host memory for others, buddies' copies, is no part of it, as it is none of a device's.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from torch import nn

from frostline_contract.pieces import Pieces
from frostline_trainer.memory import LiveBytes
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.optimizer import Moments


class Weighing:
    """The count of one member's tensors in one generation.

    tensor_bytes: the most that weights, moments, gradients and activations took; 0 before it was counted. Nothing is counted
    where no limit is set, on a GPU, whose allocator counts, and under torch's compiler, which would compile other programs for
    counted operations.
    """

    def __init__(self, context: RunContext) -> None:
        training, limit = context.job.training, context.job.placement.worker_memory_bytes
        self._device = context.device
        self._wanted = limit is not None and context.device.type == "cpu" and not training.compile
        self._meter: LiveBytes | None = None
        self._counted = 0
        self.tensor_bytes = 0

    def begin(self) -> None:
        """The gradient memory of the steps before is given back: the next step is counted."""
        self._meter = LiveBytes(self._device) if self._wanted else None

    def part(self) -> AbstractContextManager[object]:
        """Count what a part of the step makes inside."""
        return self._meter if self._meter is not None else nullcontext()

    def end(self) -> None:
        """The step's gradients are complete."""
        if self._meter is not None:
            self._counted, self._meter = self._meter.peak, None

    def settle(self, units: Iterable[tuple[int, nn.Module]], moments: Moments, table: Pieces) -> None:
        """A step begins, so that the one before has made its moments: they and the weights were there all along.

        Args:
            units: (index, unit) of those that this member holds.
            moments: of all units.
            table: of their pieces.
        """
        if self._counted:
            held = dict(units)
            state = sum(tensor.nbytes for unit in held.values() for tensor in (*unit.parameters(), *unit.buffers()))
            kept = [state for (piece, _), state in moments.items() if table.unit_of(piece) in held]
            state += sum(tensor.nbytes for one in kept for tensor in one.values())
            self.tensor_bytes, self._counted = max(self.tensor_bytes, self._counted + state), 0
