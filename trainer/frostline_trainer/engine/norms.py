"""Gradient norms of units, as the vote carries them."""

import math
from collections.abc import Sequence

import torch


def gradient_norms(gradients: Sequence[tuple[int, torch.Tensor]]) -> torch.Tensor | None:
    """The L2 norm of each gradient, one foreach pass in float64, on the gradients' device; None where there are none.

    gradients: (unit, gradient of one of its parameters).
    """
    if not gradients:
        return None
    return torch.stack(torch._foreach_norm([gradient for _, gradient in gradients], 2, torch.float64))


def unit_squares(gradients: Sequence[tuple[int, torch.Tensor]], norms: torch.Tensor | None) -> dict[int, float]:
    """Squared L2 norm of each unit's gradient, squares added in the given order in float64; this reads the device's memory.

    gradients, norms: as for, and of, `gradient_norms`. What is not finite is infinite.
    """
    squares: dict[int, float] = {}
    for (unit, _), norm in zip(gradients, norms.tolist() if norms is not None else (), strict=True):
        squares[unit] = squares.get(unit, 0.0) + norm * norm
    return {unit: square if math.isfinite(square) else math.inf for unit, square in squares.items()}
