"""Which axes of ranks divide the rows and the columns of activations. From that alone follow all messages of a product.

Axes: i, j, l, as in the paper on 3-D (arXiv 2105.14450). *hidden* is the residual stream, *inner* lies between the two products
of a feed-forward.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor

from frostline_contract.mesh import Mesh


@dataclass(frozen=True)
class Split:
    """How one kind of activation is divided. rows: axes of its rows, the slowest first. columns: axis of its columns, or none."""

    rows: tuple[str, ...]
    columns: str | None


@dataclass(frozen=True)
class TensorLayout:
    """A layout on a box of ranks. degrees: by axis, the slowest first."""

    degrees: tuple[tuple[str, int], ...]
    hidden: Split
    inner: Split

    @property
    def mesh(self) -> Mesh:
        """The box of ranks."""
        return Mesh(self.degrees)

    def part(self, matrix: Tensor, global_rank: int, rows: Iterable[str | None], columns: str | None) -> Tensor:
        """A rank's part of a matrix. rows: axes that divide its rows, the slowest first. columns: the axis that divides its
        columns."""
        at = self.mesh.coordinate(global_rank)
        for axis in rows:
            matrix = matrix.chunk(self.degree(axis), 0)[at.get(axis or "", 0)]
        return matrix.chunk(self.degree(columns), 1)[at.get(columns or "", 0)].contiguous()

    def degree(self, axis: str | None) -> int:
        """Ranks along an axis; 1 without one."""
        return dict(self.degrees).get(axis, 1) if axis is not None else 1


def one_d(side: int) -> TensorLayout:
    """Megatron-LM (arXiv 1909.08053): each rank has all rows, and a share of the inner columns."""
    return TensorLayout((("j", side),), Split((), None), Split((), "j"))


def two_d(side: int) -> TensorLayout:
    """SUMMA on a square (arXiv 2104.05343): rows by i and columns by j, of both kinds of activations."""
    square = Split(("i",), "j")
    return TensorLayout((("i", side), ("j", side)), square, square)


def box(columns: int, depth: int, replicas: int) -> TensorLayout:
    """Any box: hidden rows by i and j, hidden columns by l; inner rows by i and l, inner columns by j.

    columns: ranks along j. depth: along l. replicas: along i, over which weights are divided as in ZeRO-3. With columns alone
    this is 1-D with divided rows (sequence parallelism).
    """
    return TensorLayout((("i", replicas), ("j", columns), ("l", depth)), Split(("i", "j"), "l"), Split(("i", "l"), "j"))


def three_d(side: int) -> TensorLayout:
    """The cube of the paper (arXiv 2105.14450)."""
    return box(side, side, side)


LAYOUTS: dict[str, Callable[[int], TensorLayout]] = {
    "1-D": one_d,
    "1-D, rows divided": lambda side: box(side, 1, 1),
    "2-D": two_d,
    "3-D": three_d,
    "plane": lambda side: box(side, side, 1),
    "columns and sharded replicas": lambda side: box(side, 1, side),
}
"""The registered layouts by name, each for a side."""


@dataclass(frozen=True)
class ProductPlan:
    """The messages of a product Y = X W in a layout, and where its weight is.

    Attributes:
        gathered_rows: axis along which the rows of X are gathered.
        gathered_columns: axis along which the columns of X are gathered.
        summed: axis along which partial products are summed.
        divided: axis along which the rows of a rank's block of W are divided, and gathered for use.
        outputs: axis along which the columns of Y, and of W, are divided.
        scatters: whether the sum leaves each rank a part of the rows; else it leaves all ranks the whole.
    """

    gathered_rows: str | None
    gathered_columns: str | None
    summed: str | None
    divided: str | None
    outputs: str | None
    scatters: bool

    @classmethod
    def of(cls, source: Split, target: Split) -> "ProductPlan":
        """The plan of a product from one kind of activation to the other, or to the same."""
        gathered = [axis for axis in source.rows if axis not in target.rows]
        scattered = [axis for axis in target.rows if axis not in source.rows]
        both = [axis for axis in source.rows if axis in target.rows]
        is_summed = source.columns != target.columns and source.columns is not None
        return cls(
            gathered_rows=gathered[0] if gathered else None,
            gathered_columns=source.columns if source.columns == target.columns else None,
            summed=source.columns if is_summed else None,
            divided=both[0] if both else None,
            outputs=target.columns,
            scatters=bool(scattered),
        )
