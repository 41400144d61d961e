"""Between host memory and a device, without the host's waiting.

A copy from or to ordinary host memory waits for the device, and the device for it. From and to page-locked memory it is one more
piece of the device's work. Whoever reads such a copy on the host does so behind the fence (`step.fence`).
"""

from collections.abc import Sequence

import torch


def page_locked(tensor: torch.Tensor) -> torch.Tensor:
    """A host tensor in page-locked memory: itself where it is there."""
    return tensor.pin_memory()


def page_locked_empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Page-locked memory with any content. Memory that a copy is under way from or to is not given out again before its end."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)


def host_memory_for(device: torch.device, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Memory in the host from which, or to which, `device` copies; any content."""
    return torch.empty(tuple(shape), dtype=dtype) if device.type == "cpu" else page_locked_empty(shape, dtype)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor on a device, which copies it in the order of its work; itself where it is there."""
    if tensor.device == device:
        return tensor
    return page_locked(tensor).to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in host memory: itself where it is there, else a copy that is whole behind the next fence."""
    if tensor.device.type == "cpu":
        return tensor
    return page_locked_empty(tensor.shape, tensor.dtype).copy_(tensor, non_blocking=True)


def gather(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """tensor[rows], in that order; a view where the rows follow each other."""
    if (span := _span(rows)) is not None:
        return tensor[span]
    return tensor.index_select(0, to_device(torch.tensor(rows), tensor.device))


def scatter(out: torch.Tensor, rows: Sequence[int], values: torch.Tensor) -> None:
    """out[rows] = values, wherever they lie."""
    if not rows:
        return
    if (span := _span(rows)) is not None:
        out[span].copy_(page_locked(values) if out.device != values.device else values, non_blocking=True)
    else:
        out.index_copy_(0, to_device(torch.tensor(rows), out.device), to_device(values, out.device))


def _span(rows: Sequence[int]) -> slice | None:
    """Where rows that follow each other lie; None where they do not."""
    if not rows or list(rows) != list(range(rows[0], rows[0] + len(rows))):
        return None
    return slice(rows[0], rows[0] + len(rows))
