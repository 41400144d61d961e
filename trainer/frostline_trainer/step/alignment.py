"""Alignment of operands: every tensor that a kernel reads begins at a 64-byte boundary.

torch's allocator gives such memory. Slices of a larger tensor, views into a received or loaded buffer and arrays of numpy may
begin anywhere, and some kernels choose their code path by the address, which changes bits.
"""

import torch
from torch import nn

ALIGNMENT_BYTES = 64


def is_aligned(tensor: torch.Tensor) -> bool:
    """Whether the tensor's first element lies at a 64-byte boundary. A tensor without storage (meta) counts as aligned."""
    return tensor.device.type == "meta" or tensor.numel() == 0 or tensor.data_ptr() % ALIGNMENT_BYTES == 0


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if it is aligned, else a contiguous, aligned copy."""
    return tensor if is_aligned(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def align_weights(model: nn.Module) -> None:
    """Copy unaligned parameters and buffers (such as views into a mapped checkpoint file) to aligned memory. Ties stay."""
    for parameter in model.parameters():
        parameter.data = aligned(parameter.data)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = aligned(buffer)
