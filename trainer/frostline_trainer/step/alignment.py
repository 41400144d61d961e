"""Alignment of what kernels are given: every operand begins at a 64-byte boundary.

torch's allocator gives such memory. Slices of a larger tensor, views into a received or loaded buffer and arrays of numpy may lie
anywhere, and kernels that look at addresses would compute other bits there.
"""

import torch
from torch import nn

ALIGNMENT_BYTES = 64


def is_aligned(tensor: torch.Tensor) -> bool:
    """Whether the tensor's first element lies at a 64-byte boundary. A tensor without storage (meta) counts as aligned."""
    return tensor.device.type == "meta" or tensor.numel() == 0 or tensor.data_ptr() % ALIGNMENT_BYTES == 0


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself where it is aligned, else a contiguous copy that is."""
    return tensor if is_aligned(tensor) else tensor.clone(memory_format=torch.contiguous_format)


def align_weights(model: nn.Module) -> None:
    """Move parameters and buffers that are not aligned, such as views into a mapped checkpoint file. Values and ties stay."""
    for parameter in model.parameters():
        parameter.data = aligned(parameter.data)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = aligned(buffer)
