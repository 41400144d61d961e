"""Sums by pairs, whose bits do not depend on how their addends are divided among workers."""

from collections.abc import Sequence

import torch
from torch import Tensor

HALVES = (torch.bfloat16, torch.float16)


def addend(partial: Tensor) -> Tensor:
    """A tile's addend to a sum: half precision is raised to float32, so that a sum is rounded once, however ranks divide it."""
    return partial.float() if partial.dtype in HALVES else partial


def pairwise(addends: Sequence[Tensor]) -> Tensor:
    """((a0 + a1) + (a2 + a3)) + ... over a power of two of addends. No addend is changed."""
    level = list(addends)
    while len(level) > 1:
        level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]
