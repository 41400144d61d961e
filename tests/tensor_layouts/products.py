"""A product Y = X W of one rank of a layout, tile by tile, with every sum over tiles by pairs in tile order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from frostline_trainer.step.alignment import aligned
from frostline_trainer.tensor.pairs import pairwise
from frostline_trainer.transport.collectives import Group
from tests.tensor_layouts.layouts import ProductPlan, TensorLayout


@dataclass(frozen=True)
class Grid:
    """Tiles of the whole product: of its rows, of the columns of X, and of the columns of Y."""

    rows: int
    inputs: int
    outputs: int


def blocks(matrix: Tensor, rows: int, columns: int) -> list[list[Tensor]]:
    """The tiles of a matrix, by row of tiles, each contiguous and aligned."""
    return [[aligned(tile.contiguous()) for tile in row.chunk(columns, 1)] for row in matrix.chunk(rows, 0)]


def joined(tiles: Sequence[Sequence[Tensor]]) -> Tensor:
    """The matrix of tiles."""
    return torch.cat([torch.cat(list(row), 1) for row in tiles], 0)


def product(x: list[list[Tensor]], w: list[list[Tensor]]) -> Tensor:
    """Y of tiles of X and W: each of its tiles is the tree over the tiles between."""
    return joined([[pairwise([row[k] @ w[k][n] for k in range(len(w))]) for n in range(len(w[0]))] for row in x])


def input_gradient(dy: list[list[Tensor]], w: list[list[Tensor]]) -> Tensor:
    """dX of tiles of dY and W."""
    return joined([[pairwise([row[n] @ w[k][n].t() for n in range(len(w[0]))]) for k in range(len(w))] for row in dy])


def weight_gradient(x: list[list[Tensor]], dy: list[list[Tensor]]) -> Tensor:
    """dW of tiles of X and dY."""
    return joined(
        [[pairwise([x[m][k].t() @ dy[m][n] for m in range(len(x))]) for n in range(len(dy[0]))] for k in range(len(x[0]))]
    )


class ShardedProduct:
    """One rank's part of a product, forward and backward.

    Args:
        layout: of the ranks.
        plan: the product's messages in the layout.
        groups: the rank's group along each axis.
        grid: tiles of the whole product.
        weight: the rank's part of W.
        keeps_copies: whether what is gathered in the forward is kept for the backward; else it is gathered again.
    """

    def __init__(self, layout: TensorLayout, plan: ProductPlan, groups: Mapping[str, Group], grid: Grid, weight: Tensor,
                 keeps_copies: bool = True) -> None:  # fmt: skip
        self._layout, self._plan, self._groups, self._weight = layout, plan, groups, weight
        self._keeps, self._kept = keeps_copies, (weight, weight)
        self._rows = max(1, grid.rows // layout.degree(plan.divided))
        self._inputs = max(1, grid.inputs // layout.degree(plan.summed))
        self._outputs = max(1, grid.outputs // layout.degree(plan.outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The rank's part of Y from its part of X."""
        whole_x, whole_w = self._gathered(x)
        self._kept = (whole_x, whole_w) if self._keeps else (x, whole_w[:0])
        node = product(blocks(whole_x, self._rows, self._inputs), blocks(whole_w, self._inputs, self._outputs))
        return self._sum(node, self._plan.summed, 0 if self._plan.scatters else None)

    def backward(self, dy: Tensor) -> tuple[Tensor, Tensor]:
        """(the rank's part of dX, its part of dW) from its part of dY."""
        plan = self._plan
        whole_x, whole_w = self._kept if self._keeps else self._gathered(self._kept[0])
        whole_dy = self._gather(dy, plan.summed, 0) if plan.scatters else dy
        in_x, in_w = blocks(whole_x, self._rows, self._inputs), blocks(whole_w, self._inputs, self._outputs)
        in_dy = blocks(whole_dy, self._rows, self._outputs)
        scattered = 0 if plan.gathered_rows is not None else 1 if plan.gathered_columns is not None else None
        dx = self._sum(input_gradient(in_dy, in_w), plan.outputs, scattered)
        return dx, self._sum(weight_gradient(in_x, in_dy), plan.divided, 0)

    def _gathered(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = self._plan.gathered_rows, self._plan.gathered_columns
        whole = self._gather(x, rows, 0) if rows is not None else self._gather(x, columns, 1)
        return whole, self._gather(self._weight, self._plan.divided, 0)

    def _gather(self, part: Tensor, axis: str | None, dim: int) -> Tensor:
        """The parts of all ranks along an axis, side by side."""
        if self._layout.degree(axis) == 1:
            return part
        assert axis is not None
        group, own = self._groups[axis], part.contiguous()
        found = own.new_empty(group.size, *own.shape)
        group.all_gather(found.view(-1), own.view(-1))
        return torch.cat(list(found), dim)

    def _sum(self, node: Tensor, axis: str | None, dim: int | None) -> Tensor:
        """The sum of the ranks' nodes along an axis, by pairs in rank order.

        dim: of which each rank gets a part; None: all get the whole.
        """
        if self._layout.degree(axis) == 1:
            return node
        assert axis is not None
        group = self._groups[axis]
        parts = torch.stack([part.contiguous() for part in node.chunk(group.size, dim or 0)])
        there, each = torch.empty_like(parts), [parts[0].numel()] * group.size
        group.all_to_all(there.view(-1), parts.view(-1), each, each)
        own = pairwise(list(there))
        return own if dim is not None else self._gather(own, axis, 0)
