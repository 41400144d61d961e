"""Packs a state into one row of bytes, in which it is sent to another member: a JSON header, then each tensor's bytes, aligned.

The sender copies each tensor once, into the row that is sent; the receiver's tensors are views of the received row. Received data
is never unpickled, and a header is checked against the row's length.
"""

import json
import math
from typing import Any

import torch

from frostline_trainer.step.alignment import ALIGNMENT_BYTES
from frostline_trainer.step.unit_state import UnitState

HEAD = 8
"""Bytes of the number in front that gives the header's length."""
TYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
                  torch.uint8, torch.bool)
}  # fmt: skip
DIMENSIONS_MAX = 8
Entry = tuple[str, torch.dtype, tuple[int, ...]]


def pack(state: UnitState) -> torch.Tensor:
    """The row, flat uint8 in host memory. Waits for copies from a device; states are sent between steps only."""
    entries = [(key, tensor.dtype, tuple(tensor.shape)) for key, tensor in state.items()]
    described = [[key, str(dtype).removeprefix("torch."), list(shape)] for key, dtype, shape in entries]
    head = json.dumps(described, separators=(",", ":")).encode()
    places, size = _places(entries, len(head))
    row = torch.empty(size, dtype=torch.uint8)
    row[:HEAD] = torch.tensor(list(len(head).to_bytes(HEAD, "big")), dtype=torch.uint8)
    row[HEAD : HEAD + len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    for (_, dtype, shape), (low, high), tensor in zip(entries, places, state.values(), strict=True):
        row[low:high].view(dtype).view(shape).copy_(tensor.detach())
    return row


def unpack(row: torch.Tensor) -> UnitState:
    """The tensors in a row of bytes, as views of it. Raises RuntimeError for a row that `pack` cannot have made."""
    length = int.from_bytes(bytes(row[:HEAD].tolist()), "big") if row.numel() >= HEAD else -1
    if not 0 <= length <= row.numel() - HEAD:
        raise RuntimeError(f"what came is no state: its head is said to have {length} of {row.numel()} bytes")
    try:
        described = json.loads(row[HEAD : HEAD + length].numpy().tobytes())
        entries = [_entry(*one) for one in described]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RuntimeError(f"what came is no state: its head cannot be read ({error})") from error
    places, size = _places(entries, length)
    if size != row.numel() or len({key for key, _, _ in entries}) < len(entries):
        raise RuntimeError(f"what came is no state: {len(entries)} tensors of {size} bytes in a row of {row.numel()}")
    return {key: row[low:high].view(dtype).view(shape) for (key, dtype, shape), (low, high) in zip(entries, places, strict=True)}


def _entry(key: Any, dtype: Any, shape: Any) -> Entry:
    sizes = tuple(shape)
    if not isinstance(key, str) or len(sizes) > DIMENSIONS_MAX or any(type(size) is not int or size < 0 for size in sizes):
        raise ValueError(f"{key!r} has the shape {shape!r}")
    return key, TYPES[dtype], sizes


def _places(entries: list[Entry], head: int) -> tuple[list[tuple[int, int]], int]:
    """Where each tensor's bytes lie, and the length of the whole row."""
    places, end = list[tuple[int, int]](), HEAD + head
    for _, dtype, shape in entries:
        low = end + -end % ALIGNMENT_BYTES
        end = low + math.prod(shape) * dtype.itemsize
        places.append((low, end))
    return places, end
