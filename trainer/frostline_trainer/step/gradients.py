"""Gradient buffers of one stage: flat tensors whose views are the parameters' `.grad`, summed leaf by leaf.

Each parameter's part of a flat buffer starts at a 64-byte boundary, and a unit's part is laid out the same on every stage, so
that kernels see the same alignment wherever the unit is computed.
"""

from collections.abc import Sequence

import torch
from torch import nn

from frostline_contract.shape import leaf_micro_batches
from frostline_trainer.step.alignment import ALIGNMENT_BYTES
from frostline_trainer.step.tree import TreeSum

UNIT_ALIGNMENT = 128
"""Alignment of a unit's part, in elements: at least 256 bytes for every type."""


class GradientBuffers:
    """The gradient buffers of a stage's trainable parameters.

    A stage without trainable parameters (frozen blocks without adapters) has no buffer and no sum. Memory is reused from step
    to step.

    Args:
        parameters_by_unit: (unit index, its trainable parameters in order).
        num_microbatches, num_leaves: Of the whole step.
        exact: Sum in tree order; otherwise all gradients are added to one buffer in the order of computation.
        members: Size of the group that reduces the gradient; a buffer is padded to that many chunks of equal size.
        in_cells: Whether a micro-batch adds several gradients, one a cell.

    Attributes:
        held_bytes: Size of all buffers together.
    """

    def __init__(self, parameters_by_unit: Sequence[tuple[int, Sequence[nn.Parameter]]], num_microbatches: int, num_leaves: int,
                 exact: bool = True, members: int = 1, in_cells: bool = False) -> None:  # fmt: skip
        self._parameters_by_unit = parameters_by_unit
        self.parameters = [parameter for _, group in parameters_by_unit for parameter in group]
        self._shapes = [parameter.shape for parameter in self.parameters]
        self._num_microbatches, self._num_leaves, self._exact = num_microbatches, num_leaves, exact
        self._in_cells = in_cells
        self.offsets: list[int] = []
        self.unit_slices: dict[int, slice] = {}
        length = 0
        for unit, group in parameters_by_unit:
            start = length
            for parameter in group:
                length += -length % (ALIGNMENT_BYTES // parameter.element_size())
                self.offsets.append(length)
                length += parameter.numel()
            self.unit_slices[unit] = slice(start, length)
            length += -length % UNIT_ALIGNMENT
        self.length = length
        self.chunk = -(-length // (members * UNIT_ALIGNMENT)) * UNIT_ALIGNMENT
        self._capacity = self.chunk * members
        self._views: dict[int, list[torch.Tensor]] = {}
        self._free: list[torch.Tensor] = []
        self._rooms: dict[str, torch.Tensor] = {}
        self.held_bytes = 0
        self._open: torch.Tensor | None = None
        self._open_node = (0, 1)
        self._tree = TreeSum(num_leaves, self._free.append)
        self._leaf_of = [leaf for leaf in range(num_leaves) for _ in leaf_micro_batches(leaf, num_microbatches, num_leaves)]

    def fitting(self) -> "GradientBuffers":
        """These buffers; or others, if the parameters have other shapes for a while, as in an audit in another member's place."""
        if self._shapes == [parameter.shape for parameter in self.parameters]:
            return self
        return GradientBuffers(self._parameters_by_unit, self._num_microbatches, self._num_leaves)

    def reserve(self, length: int) -> None:
        """Make each buffer at least `length` elements long; called before the first step."""
        assert not self._free and not self._tree.nodes, "buffers are in use"
        self._capacity = max(self._capacity, length)

    def before_backward(self, micro_batch: int) -> None:
        """Point the `.grad`s at the buffer into which this micro-batch's gradients are added."""
        if self._open is not None or not self.parameters:
            return
        leaf = self._leaf_of[micro_batch]
        # A leaf of one gradient is added straight into its finished left sibling: this addition is the tree's first level.
        is_one = self._members(leaf) == 1 and not self._in_cells
        if self._exact and leaf & 1 and is_one and (leaf - 1, 1) in self._tree.nodes:
            self._open, self._open_node = self._tree.take(leaf - 1, 1), (leaf - 1, 2)
        else:
            self._open, self._open_node = self.spare_buffer().zero_(), (leaf, 1)
        self._bind(self._open)

    def after_backward(self, micro_batch: int) -> None:
        """Mark a micro-batch's gradients as complete; a leaf that this completes is pushed into the tree."""
        if self._open is None or not self._exact:
            return
        leaf = self._leaf_of[micro_batch]
        if micro_batch == leaf_micro_batches(leaf, self._num_microbatches, self._num_leaves)[-1]:
            buffer, self._open = self._open, None
            self._tree.push(*self._open_node, buffer)

    def begin_apart(self) -> torch.Tensor:
        """Point the `.grad`s at a zeroed buffer for one micro-batch's gradient alone; return it with `join` or `release`."""
        apart = self.spare_buffer().zero_() if self.parameters else torch.empty(0)
        if self.parameters:
            self._bind(apart)
        return apart

    def join(self, micro_batch: int, apart: torch.Tensor) -> None:
        """Add a micro-batch's gradient that was computed apart, with the bits of one that was added during its backward.

        Both ways add the gradient once to the same sum. Only a negative zero could differ, and no sum here is one.
        """
        self.add(micro_batch, apart)
        self.after_backward(micro_batch)

    def add(self, micro_batch: int, apart: torch.Tensor) -> None:
        """Add one of several gradients of a micro-batch that was computed apart; the leaf stays open, unlike with `join`."""
        if not self.parameters:
            return
        self.before_backward(micro_batch)
        assert self._open is not None
        self._bind(self._open.add_(apart))
        self.recycle(apart)

    def pieces(self) -> dict[tuple[int, int], torch.Tensor]:
        """Remove and return the tree nodes that this replica has summed; exact sums only."""
        nodes, self._tree.nodes = self._tree.nodes, {}
        return nodes

    def take_accumulated(self) -> torch.Tensor:
        """Remove and return the plain sum; only if sums are not exact."""
        assert self._open is not None
        buffer, self._open = self._open, None
        return buffer

    def adopt(self, total: torch.Tensor) -> None:
        """Make the `.grad`s views of `total`, the step's gradient."""
        self._bind(total)

    def release(self, total: torch.Tensor) -> None:
        """End the step: clear the `.grad`s and take the buffer back for reuse."""
        self.unbind()
        self.recycle(total)

    def unbind(self) -> None:
        """Set every `.grad` to None."""
        for parameter in self.parameters:
            parameter.grad = None

    def span(self, units: Sequence[int]) -> slice:
        """Where consecutive units lie in a flat buffer, including the padding that aligns the next unit."""
        stop = self.unit_slices[units[-1]].stop
        return slice(self.unit_slices[units[0]].start, stop + -stop % UNIT_ALIGNMENT)

    def abandon(self) -> None:
        """Drop a half-computed step."""
        self.unbind()
        self._open = None
        self._tree.nodes = {}

    def give_back(self) -> None:
        """Free all memory at once, even if references to this object remain; between steps, as its last call."""
        self.abandon()
        self._free.clear()
        self._rooms.clear()
        self._views.clear()
        self.held_bytes = 0

    def views(self, buffer: torch.Tensor) -> list[torch.Tensor]:
        """The parameters' gradients inside `buffer`, in order."""
        views = self._views.get(buffer.data_ptr())
        if views is None:
            sizes = zip(self.offsets, self.parameters, strict=True)
            views = [buffer[offset : offset + parameter.numel()].view_as(parameter) for offset, parameter in sizes]
            self._views[buffer.data_ptr()] = views
        return views

    def _bind(self, buffer: torch.Tensor) -> None:
        for parameter, view in zip(self.parameters, self.views(buffer), strict=True):
            parameter.grad = view

    def spare_buffer(self) -> torch.Tensor:
        """An uninitialized buffer of `chunk` elements for each member; return it with `release` or `recycle`."""
        return self._free.pop() if self._free else self._allocate(self._capacity)

    def room(self, name: str, length: int) -> torch.Tensor:
        """An uninitialized workspace of `length` elements by name, reused in every step: allocation costs more than its use."""
        if name not in self._rooms:
            self._rooms[name] = self._allocate(length)
        assert self._rooms[name].numel() == length
        return self._rooms[name]

    def _allocate(self, length: int) -> torch.Tensor:
        like = self.parameters[0]
        self.held_bytes += length * like.element_size()
        return torch.empty(length, dtype=like.dtype, device=like.device)

    def recycle(self, buffer: torch.Tensor) -> None:
        """Take a flat buffer back for a later leaf, so that no step allocates again."""
        self._free.append(buffer)

    def _members(self, leaf: int) -> int:
        return len(leaf_micro_batches(leaf, self._num_microbatches, self._num_leaves))
