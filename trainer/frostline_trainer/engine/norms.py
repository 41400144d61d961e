"""Gradient norms of units, as the vote carries them."""

import math
from collections.abc import Sequence

import torch


def unit_squares(gradients: Sequence[tuple[int, torch.Tensor]]) -> dict[int, float]:
    """Squared L2 norm of each unit's gradient: one foreach pass, squares added in the given order in float64.

    gradients: (unit, gradient of one of its parameters). What is not finite is infinite.
    """
    if not gradients:
        return {}
    norms = torch.stack(torch._foreach_norm([gradient for _, gradient in gradients], 2, torch.float64)).tolist()
    squares: dict[int, float] = {}
    for (unit, _), norm in zip(gradients, norms, strict=True):
        squares[unit] = squares.get(unit, 0.0) + norm * norm
    return {unit: square if math.isfinite(square) else math.inf for unit, square in squares.items()}
