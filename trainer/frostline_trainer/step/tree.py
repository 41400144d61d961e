"""The summation tree of a step: L leaves, summed pairwise in an order that is independent of placement (docs/protocols.md 1.2).

A node is (low, size): the sum of the leaves [low, low + size), size a power of two, low a multiple of size.
"""

from collections.abc import Callable

import torch


def aligned_pieces(low: int, high: int, num_leaves: int) -> list[tuple[int, int]]:
    """The largest tree nodes that together cover the leaves [low, high), in order."""
    pieces = []
    while low < high:
        size = low & -low if low else num_leaves
        while low + size > high:
            size //= 2
        pieces.append((low, size))
        low += size
    return pieces


class TreeSum:
    """Sums flat tensors in tree order. `recycle` is called with each tensor that has been added to its sibling."""

    def __init__(self, num_leaves: int, recycle: Callable[[torch.Tensor], None] | None = None) -> None:
        self._num_leaves = num_leaves
        self._recycle = recycle
        self.nodes: dict[tuple[int, int], torch.Tensor] = {}

    def push(self, low: int, size: int, value: torch.Tensor) -> None:
        """Add node (low, size); siblings merge at once, the left one in place."""
        while size < self._num_leaves:
            sibling = self.nodes.pop((low ^ size, size), None)
            if sibling is None:
                break
            left, right = (value, sibling) if low & size == 0 else (sibling, value)
            value = left.add_(right)
            if self._recycle is not None:
                self._recycle(right)
            low, size = low & ~size, size * 2
        self.nodes[(low, size)] = value

    def take(self, low: int, size: int) -> torch.Tensor:
        """Remove the sum of the leaves [low, low + size) and return it. Raises KeyError if it is not complete."""
        return self.nodes.pop((low, size))
