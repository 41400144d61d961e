"""Gradient norms of pieces, for the vote."""

import math
from collections.abc import Sequence

import torch

from frostline_trainer.step.alignment import ALIGNMENT_BYTES, aligned
from frostline_trainer.step.transfer import to_host


def gradient_norms(gradients: Sequence[tuple[int, torch.Tensor]]) -> Sequence[torch.Tensor]:
    """The L2 norm of each gradient, one foreach pass in float64, on the gradients' device.

    A GPU's kernel adds in an order that depends on the address, and if a gradient has gaps (a tile of a matrix), another kernel
    is taken for the whole list. So each gradient is given without gaps, and aligned: its norm depends on its values alone.

    gradients: (piece, gradient of what it has of one parameter).
    """
    whole = [aligned(gradient.contiguous(), ALIGNMENT_BYTES) for _, gradient in gradients]
    return torch._foreach_norm(whole, 2, torch.float64) if whole else ()


def host_figures(figures: Sequence[torch.Tensor]) -> torch.Tensor:
    """Copy float64 scalars to host memory as one tensor, valid behind the fence: all that the host reads of a step's device."""
    return to_host(torch.stack(list(figures))) if figures else torch.empty(0, dtype=torch.float64)


def piece_squares(gradients: Sequence[tuple[int, torch.Tensor]], norms: Sequence[float]) -> dict[int, float]:
    """Squared L2 norm of each piece's gradient, squares added in the given order in float64. NaN becomes infinity.

    gradients, norms: argument and result of `gradient_norms`.
    """
    squares: dict[int, float] = {}
    for (piece, _), norm in zip(gradients, norms, strict=True):
        squares[piece] = squares.get(piece, 0.0) + norm * norm
    return {piece: square if math.isfinite(square) else math.inf for piece, square in squares.items()}
