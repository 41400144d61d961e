"""The message with the reduced gradients of pieces of tiles: their parts one behind the other, aligned.

Owner and buddy may hold other tiles of a unit in their modules, so that the layout depends on the pieces alone.
"""

from collections.abc import Callable, Sequence

import torch

from frostline_contract.pieces import RANGE_ALIGNMENT
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.parts import Part, parts_of
from frostline_trainer.step.tied import learning


class PackedParts:
    """The layout of one message.

    Args:
        context: the run's.
        pieces: whose gradients are sent.
        freeze_point: of the step.

    Attributes:
        length: elements of the message.
    """

    def __init__(self, context: RunContext, pieces: Sequence[int], freeze_point: int) -> None:
        table, self._units, self.length = context.pieces, context.cut.units, 0
        self._places = []
        for piece in pieces:
            unit = table.unit_of(piece)
            names = {name for name, _ in learning(context, freeze_point, unit)}
            for part in parts_of(table, piece, self._units[unit]):
                if part.name in names:
                    low = self.length + -self.length % RANGE_ALIGNMENT
                    self.length = low + part.high - part.low
                    self._places.append((piece, unit, part, slice(low, self.length)))
        self.dtype = next(self._units[0].parameters()).dtype

    def pack(self, message: torch.Tensor, gradient_of: Callable[[int, Part], torch.Tensor]) -> torch.Tensor:
        """Copy the parts' gradients into a message, and return it. gradient_of: (piece, part) -> its gradient, flat."""
        for piece, _, part, place in self._places:
            message[place].copy_(gradient_of(piece, part))
        return message

    def parts(self, message: torch.Tensor) -> dict[tuple[int, str], torch.Tensor]:
        """(piece, parameter name) -> gradient of that part, as a view of a message."""
        return {(piece, part.name): message[place] for piece, _, part, place in self._places}
