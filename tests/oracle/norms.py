"""The norm of a gradient, as the engine defines it on every device."""

import torch
from torch import Tensor


def norm_of(gradient: Tensor) -> float:
    """Return the L2 norm, in float64, of the gradient without gaps.

    By the kernel for lists of tensors: a GPU's adds in another order than the one for a single tensor. On a CPU both are one.
    """
    return torch._foreach_norm([gradient.contiguous()], 2, torch.float64)[0].item()
