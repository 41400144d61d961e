"""Asynchronous copies between host memory and a device.

A copy from or to ordinary host memory makes the host wait for the device. A copy from or to page-locked memory is queued like the
device's other work; the host may read its result only behind the fence (`step.fence`).
"""

from collections.abc import Sequence

import torch


def page_locked(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in page-locked memory: itself if it is there already."""
    return tensor.pin_memory()


def page_locked_empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialized page-locked tensor. Its memory is not reused while a copy from or to it is under way."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)


def host_memory_for(device: torch.device, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An uninitialized host tensor for copies from and to `device`: page-locked for a GPU."""
    return torch.empty(tuple(shape), dtype=dtype) if device.type == "cpu" else page_locked_empty(shape, dtype)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A host tensor on a device, copied in the order of the device's work; itself if it is there already."""
    if tensor.device == device:
        return tensor
    return page_locked(tensor).to(device, non_blocking=True)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in host memory: itself if it is there already, else a copy that is complete behind the next fence."""
    if tensor.device.type == "cpu":
        return tensor
    return page_locked_empty(tensor.shape, tensor.dtype).copy_(tensor, non_blocking=True)


def gather(tensor: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """tensor[rows], in that order; a view if the rows are consecutive."""
    if (span := _span(rows)) is not None:
        return tensor[span]
    return tensor.index_select(0, to_device(torch.tensor(rows), tensor.device))


def scatter(out: torch.Tensor, rows: Sequence[int], values: torch.Tensor) -> None:
    """out[rows] = values; `out` and `values` may be on different devices."""
    if not rows:
        return
    if (span := _span(rows)) is not None:
        out[span].copy_(page_locked(values) if out.device != values.device else values, non_blocking=True)
    else:
        out.index_copy_(0, to_device(torch.tensor(rows), out.device), to_device(values, out.device))


def _span(rows: Sequence[int]) -> slice | None:
    """The slice of consecutive rows; None if they are not consecutive."""
    if not rows or list(rows) != list(range(rows[0], rows[0] + len(rows))):
        return None
    return slice(rows[0], rows[0] + len(rows))
