"""The count of elements that tensor parallelism moves, by one formula for 1-D, planes, 3-D and sharded data parallelism.

A rank has a place on three axes: `columns` c, `depth` d, `replicas` r; P = c d r ranks. A product takes X [M, K] to Y [M, N] by
W [K, N], for M rows of all replicas together. Between blocks activations have their rows cut by columns and their width by depth;
between the two products of a pair it is the other way round. So a *column* product gathers X over the columns and sums Y over the
depth, a *row* product the reverse, and both gather W over the replicas; each gather or sum over an axis of n ranks brings every
rank (n - 1) / P of the whole tensor. The backward moves the same again. Summed over a block whose products are 3, 1, 4 and 4
hidden sizes h wide, with gathered copies kept:

    2 / P * (4 (c - 1) + 12 (d - 1)) M h + 24 / P * (r - 1) h^2

r = 1 and d = 1 is 1-D (Megatron-LM, arXiv 1909.08053: an all-reduce of 2 (P - 1) / P a pair and pass), c = d = r = q the
paper's 3-D (arXiv 2105.14450: 2 (q - 1) / q^3 (MK + KN + MN) a product), c = d = 1 data parallelism with sharded weights
(ZeRO-3, FSDP). Sums in a fixed tree's order move no more: an all-to-all of chunks, and each rank's own sum, is a reduce-scatter
at a ring's bytes.

That is the least. What a run sends is `traffic_in_runs`: as much along the columns, and more along the depth, since the engine
keeps activations of the hidden width whole on each rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Product:
    """One linear layer of a block.

    Attributes:
        inputs, outputs: its widths in hidden sizes.
        is_column: its input has the hidden width; else its output has.
    """

    inputs: int
    outputs: int
    is_column: bool


FEED_FORWARD = (Product(1, 4, True), Product(4, 1, False))
BLOCK = (Product(1, 3, True), Product(1, 1, False), *FEED_FORWARD)
"""Query, key and value as one product, the attention's output, and the feed-forward, as in GPT-2, BERT and ViT; models with gated
feed-forwards differ."""


@dataclass(frozen=True)
class Axes:
    """Degrees of the three axes over which a block's products are cut."""

    columns: int = 1
    depth: int = 1
    replicas: int = 1

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.columns * self.depth * self.replicas

    @property
    def words(self) -> str:
        """Columns and depth for people: "4", or "4 x 2" with a depth."""
        return f"{self.columns} x {self.depth}" if self.depth > 1 else f"{self.columns}"


@dataclass(frozen=True)
class Traffic:
    """The elements that a rank receives, by the axis that they cross."""

    columns: float
    depth: float
    replicas: float

    @property
    def total(self) -> float:
        """Elements over all axes."""
        return self.columns + self.depth + self.replicas


def traffic(
    axes: Axes,
    rows: float,
    hidden: float,
    products: Sequence[Product] = BLOCK,
    *,
    backward: bool = True,
    gathered_again: bool = False,
) -> Traffic:
    """Return the elements that a rank receives for these products.

    Args:
        axes: degrees.
        rows: tokens of all replicas together.
        hidden: the hidden width.
        products: of a block.
        backward: count the backward as well as the forward.
        gathered_again: inputs and weights are gathered again in the backward, so that no copy is kept in between.
    """
    passes = 2 if backward else 1
    gathers = passes + (1 if backward and gathered_again else 0)
    by_hidden_rows = by_inner_rows = weights = 0.0
    for product in products:
        inputs, outputs = rows * hidden * product.inputs, rows * hidden * product.outputs
        of_hidden, of_inner = (gathers * inputs, passes * outputs) if product.is_column else (passes * outputs, gathers * inputs)
        by_hidden_rows += of_hidden
        by_inner_rows += of_inner
        weights += gathers * hidden**2 * product.inputs * product.outputs
    share = 1 / axes.size
    return Traffic(
        columns=(axes.columns - 1) * share * by_hidden_rows,
        depth=(axes.depth - 1) * share * by_inner_rows,
        replicas=(axes.replicas - 1) * share * weights,
    )


def traffic_in_runs(
    axes: Axes,
    rows: float,
    hidden: float,
    products: Sequence[Product] = BLOCK,
    *,
    forward: bool = True,
    backward: bool = True,
) -> Traffic:
    """Return the elements that a rank receives in a run's group for these products of a block that learns.

    With whole activations of the hidden width on each rank a column product's outputs are summed over the depth, and its input's
    gradient, of which a rank has a d-th of the width, is summed over the columns and then gathered over the depth. A row product
    does the same with its outputs in the forward, and sums its input's gradient over the depth. A sum on every rank of n brings
    each 2 (n - 1) / n of what it sums, a gather (n - 1) / n of what it ends with. For a block, forward and backward:

        8 (c - 1) / (c d) M h along the columns, (24 / c + 4) (d - 1) / d M h along the depth

    for the M rows of one replica. Groups whose members divide samples move as much; they have no depth. Weights, messages between
    stages and what is computed outside of blocks are not counted.

    Args:
        axes: degrees.
        rows: tokens of all replicas together.
        hidden: the hidden width.
        products: of a block.
        forward, backward: the passes that count.

    Returns:
        Elements by axis; 0 for replicas.
    """
    columns = depth = 0.0
    c, d = axes.columns, axes.depth
    for product in products:
        of_inner, of_hidden = (product.outputs, product.inputs) if product.is_column else (product.inputs, product.outputs)
        inner_now, hidden_now = (forward, backward) if product.is_column else (backward, forward)
        depth += inner_now * 2 * (d - 1) / d * of_inner / c + hidden_now * (d - 1) / d * of_hidden
        columns += hidden_now * 2 * (c - 1) / c * of_hidden / d
    own = rows / axes.replicas * hidden
    return Traffic(columns=columns * own, depth=depth * own, replicas=0.0)


def powers_of_two(most: int) -> list[int]:
    """Return the powers of two up to `most`, ascending: the degrees that columns and depth can have."""
    return [1 << power for power in range(most.bit_length())]


def cube(side: int) -> Axes:
    """Return the axes of the paper's 3-D on side^3 ranks."""
    return Axes(side, side, side)
