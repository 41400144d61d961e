"""Row tiles: equal parts of a micro-batch's samples, and the exchanges between the members of a group that divide them.

Outside of tiled layers, a block computes each sample by itself: norms, dropout, residual additions. So the members of a group may
divide a micro-batch's samples there, instead of all computing the same (sequence parallelism, arXiv 2205.05198; by samples here,
not by tokens). The samples are gathered before column layers; sums of row layers are scattered. A group sends as many bytes as
with whole rows, and each member keeps a part of the activations.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from frostline_trainer.step.alignment import aligned
from frostline_trainer.tensor.held import HeldParts


class RowExchange(Protocol):
    """Exchanges of a group whose members have equally many consecutive row tiles, in rank order. All are collective."""

    def gather(self, own: Tensor) -> Tensor:
        """All members' samples, in row order, aligned. own: this member's, first dimension samples or rows of them."""
        ...

    def scatter_sum(self, node: Tensor) -> Tensor:
        """This member's rows of the sum of all members' nodes, by pairs in rank order. node: of all rows."""
        ...

    def sum(self, node: Tensor) -> Tensor:
        """The sum of all members' nodes, by pairs in rank order, on each."""
        ...


class Rows(HeldParts[RowExchange]):
    """The row tiles that one process computes outside of tiled layers."""

    @property
    def are_divided(self) -> bool:
        """Whether other members compute other row tiles."""
        return self.exchange is not None

    def own(self, whole: Any) -> Any:
        """This process' part of a tensor of all samples, or of a list with an entry for each, as a view where it can be.

        Its first dimension is samples, or rows of samples one behind the other.
        """
        if self.exchange is None:
            return whole
        each = len(whole) // self.total
        return whole[self.first * each : (self.first + self.held) * each]


WHOLE = Rows()
"""No row tiles: what is outside of tiled layers is computed for the whole micro-batch at once."""


def row_tiles(unit: torch.nn.Module) -> Rows:
    """The row tiles that a unit computes, as `install.share_tiles` has set them."""
    return vars(unit).get("row_tiles", WHOLE)


def gathered(rows: Rows, own: Tensor) -> Tensor:
    """All samples, from each member's own ones. Collective; in the backward each member keeps its own samples' gradient.

    So what is computed from all samples must be computed by each member alike, or its gradient be complete for the own samples.
    """
    return _Gathered.apply(rows, own) if rows.are_divided else own


def own_samples(rows: Rows, whole: Tensor) -> Tensor:
    """This member's samples, in aligned memory of their own. Collective in the backward, which gathers the gradient."""
    return _Own.apply(rows, whole) if rows.are_divided else whole


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Rows, own: Tensor) -> Tensor:
        ctx.rows = rows
        assert rows.exchange is not None
        return rows.exchange.gather(own)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, aligned(ctx.rows.own(gradient).contiguous())


class _Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Rows, whole: Tensor) -> Tensor:
        ctx.rows = rows
        return aligned(rows.own(whole).clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, ctx.rows.exchange.gather(gradient)
