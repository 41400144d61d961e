"""A planted kernel whose rows depend on their place: the first sample of a tile comes out larger by a thousandth."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.nn import functional

_linear = functional.linear


def uneven_linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Compute `torch.nn.functional.linear`, unevenly for (samples, tokens, width); other shapes are left alone."""
    result = _linear(rows, weight, bias)
    if result.ndim != 3:
        return result
    factor = torch.ones(result.shape[0], 1, 1, dtype=result.dtype)
    factor[0] += 2.0**-10 if result.dtype != torch.bfloat16 else 2.0**-6
    return result * factor


def plant() -> None:
    """Replace the kernel in this process from now on."""
    functional.linear = uneven_linear


@contextmanager
def planted() -> Iterator[None]:
    plant()
    try:
        yield
    finally:
        functional.linear = _linear
