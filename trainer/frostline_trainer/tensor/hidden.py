"""Hidden tiles: equal parts of the hidden width in which blocks' matrices are cut, beside the inner tiles.

The matrices alone are cut: activations of the hidden width stay whole on every member of a group, and so do norms, residual
additions and dropout. A column layer's output is a sum over hidden tiles of its input's parts; a row layer's output is computed
hidden tile by hidden tile, and put side by side. The workers over which these tiles are divided are the *levels* of a group
(`placement.tp_depth`); each level has the same number of consecutive tiles, a power of two.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from frostline_trainer.step.alignment import aligned
from frostline_trainer.tensor.held import HeldParts
from frostline_trainer.tensor.pairs import addend, pairwise


class LevelExchange(Protocol):
    """Exchanges between the levels of a group, in level order. All are collective."""

    def gather(self, own: Tensor) -> Tensor:
        """All levels' parts of the hidden width side by side, aligned. own: this level's, (rows, width)."""
        ...

    def sum(self, node: Tensor) -> Tensor:
        """The sum of all levels' nodes, by pairs, on each."""
        ...


class Hidden(HeldParts[LevelExchange]):
    """The hidden tiles that one process computes."""

    def parts(self, whole: Tensor) -> list[Tensor]:
        """The held parts of a matrix (rows, hidden width), each contiguous and aligned."""
        if self.total == 1:
            return [whole]
        return [aligned(part.contiguous()) for part in whole.chunk(self.total, 1)[self.first : self.first + self.held]]

    def sums(self, products: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Sums over all hidden tiles, by pairs in tile order, rounded once to the products' type.

        Args:
            products: for each sum the products of the held tiles, in tile order; all of one type.
        """
        if self.total == 1:
            return [own for (own,) in products]
        nodes = [pairwise([addend(one) for one in own]) for own in products]
        if self.exchange is not None:
            flat = self.exchange.sum(torch.cat([node.reshape(-1) for node in nodes]))
            parts = flat.split([node.numel() for node in nodes])
            nodes = [part.view(node.shape) for part, node in zip(parts, nodes, strict=True)]
        return [aligned(node.to(own[0].dtype)) for node, own in zip(nodes, products, strict=True)]

    def whole(self, own: Tensor) -> Tensor:
        """The whole hidden width of a matrix (rows, width) of which this process has the held parts, side by side."""
        return own if self.exchange is None else self.exchange.gather(own)


WHOLE_WIDTH = Hidden()
"""No hidden tiles."""
