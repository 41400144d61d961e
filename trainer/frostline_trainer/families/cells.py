"""Cells: a causal block computes the tokens [start, stop) of a sequence after all earlier ones, without later ones
(docs/protocols.md 1.21).

A block passes each cell's keys and values to `Cell.update`, which returns those of all tokens up to the cell's end. The backward
runs cells last to first: the gradients of keys and values are added up in `Memory`, and a cell takes its part after all cells
that read it have added theirs.
"""

from typing import Any

import torch
from torch import Tensor


class Memory:
    """Keys and values of one block for one micro-batch, (samples, heads, tokens, width) each, and their gradients.

    Attributes:
        filled: keys and values of the tokens [0, filled) are stored.
        open: gradients of the tokens [open, tokens) are complete.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens, self.filled, self.open = tokens, 0, tokens
        self._content: list[Tensor] = []
        self._gradients: list[Tensor] = []

    def write(self, start: int, stop: int, parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Store a cell's keys and values; returns those of all tokens up to `stop`.

        A recomputation writes the same bits again. Writing through `.data` does not raise autograd's version count of tensors
        that earlier cells keep for their backward; this is safe, since they read other tokens.
        """
        if start > self.filled:
            raise RuntimeError(f"cell [{start}, {stop}) comes when only the tokens [0, {self.filled}) are here")
        if not self._content:
            self._content = [part.new_empty(*part.shape[:2], self.tokens, part.shape[3]) for part in parts]
        for content, part in zip(self._content, parts, strict=True):
            content.data[:, :, start:stop] = part
        self.filled = max(self.filled, stop)
        keys, values = (content.data[:, :, :stop] for content in self._content)
        return keys, values

    def gather(self, start: int, stop: int, gradients: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Add the gradients of all keys and values that a cell has read, in float32 at least; returns its own, complete.

        The second half of a split backward calls this again; nothing is added then.
        """
        if not self._gradients:
            wide = [torch.promote_types(content.dtype, torch.float32) for content in self._content]
            self._gradients = [torch.zeros_like(one, dtype=kind) for one, kind in zip(self._content, wide, strict=True)]
        if stop > self.open:
            assert start >= self.open, f"cell [{start}, {stop}) goes backward across token {self.open}"
        else:
            if stop < self.open:
                raise RuntimeError(f"cell [{start}, {stop}) goes backward before the tokens [{stop}, {self.open})")
            for total, gradient in zip(self._gradients, gradients, strict=True):
                total[:, :, :stop] += gradient
            self.open = start
        keys, values = (
            total[:, :, start:stop].to(content.dtype) for total, content in zip(self._gradients, self._content, strict=True)
        )
        return keys, values


class Cell:
    """The tokens [start, stop) of a sequence of `tokens`, in one block; transformers' attention layers use it as their cache."""

    def __init__(self, start: int, stop: int, memory: Memory) -> None:
        self.start, self.stop, self._memory = start, stop, memory

    @property
    def tokens(self) -> int:
        """Tokens of the whole sequence."""
        return self._memory.tokens

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store this cell's keys and values, (samples, heads, stop - start, width); return those of all tokens up to its end."""
        found = _Recall.apply(keys, values, self)
        return found[0], found[1]

    def was_updated(self) -> bool:
        """Whether the block has called `update`."""
        return self._memory.filled >= self.stop

    def cut(self, whole: Tensor) -> Tensor:
        """This cell's part of a tensor whose second dimension is the sequence."""
        return whole[:, self.start : self.stop]


class _Recall(torch.autograd.Function):
    """The autograd function of `Cell.update`: keys and values of one cell to those of all tokens up to its end."""

    @staticmethod
    def forward(ctx: Any, keys: Tensor, values: Tensor, cell: Cell) -> tuple[Tensor, Tensor]:
        ctx.cell = cell
        return cell._memory.write(cell.start, cell.stop, (keys, values))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        keys, values = gradients
        cell: Cell = ctx.cell
        return (*cell._memory.gather(cell.start, cell.stop, (keys, values)), None)
