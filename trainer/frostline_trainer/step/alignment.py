"""Alignment of operands: every tensor that a kernel reads begins at a 64-byte boundary, on a GPU at one of 256 bytes.

torch's allocators give such memory. Slices of a larger tensor, views into a received or loaded buffer and arrays of numpy may
begin anywhere, and some kernels choose their code path by the address, which changes bits.
"""

import torch
from torch import nn

ALIGNMENT_BYTES = 64
"""Each part of a buffer begins at such a boundary. All kernels that work element by element are served with it, and a CPU's."""
DEVICE_ALIGNMENT_BYTES = 256
"""torch tells cuBLAS the alignment of a matrix product's operands, up to so many bytes, and cuBLAS chooses the kernel by it."""


def is_aligned(tensor: torch.Tensor, boundary: int = 0) -> bool:
    """Whether the tensor's first element lies at a boundary. A tensor without storage (meta) counts as aligned.

    boundary: in bytes; 0: as the tensor's device needs it.
    """
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return True
    needed = ALIGNMENT_BYTES if tensor.device.type == "cpu" else DEVICE_ALIGNMENT_BYTES
    return tensor.data_ptr() % (boundary or needed) == 0


def aligned(tensor: torch.Tensor, boundary: int = 0) -> torch.Tensor:
    """The tensor itself if it is aligned (see `is_aligned`), else a contiguous, aligned copy."""
    return tensor if is_aligned(tensor, boundary) else tensor.clone(memory_format=torch.contiguous_format)


def align_weights(model: nn.Module) -> None:
    """Copy unaligned parameters and buffers (such as views into a mapped checkpoint file) to aligned memory. Ties stay."""
    for parameter in model.parameters():
        parameter.data = aligned(parameter.data)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = aligned(buffer)
