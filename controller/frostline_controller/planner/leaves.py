"""Dealing leaves to replicas, and what an exchange in the tree's order then costs (docs/protocols.md 1.2)."""

from functools import lru_cache

from frostline_contract.shape import deal_leaves, leaf_micro_batches


def deal_by_speed(reduction_leaves: int, speeds: list[float]) -> tuple[int, ...]:
    """Leaf bounds (dp_degree + 1 of them) so that the slowest replica ends as early as possible.

    speeds: one a replica, relative. Every replica gets at least one leaf. Giving each next leaf to whoever would end first
    with it minimises the largest leaves / speed. Equal speeds are dealt evenly, as the contract does.
    """
    dp_degree = len(speeds)
    assert dp_degree <= reduction_leaves, f"{dp_degree} replicas for {reduction_leaves} leaves"
    if max(speeds) - min(speeds) < 1e-9:
        return _even(reduction_leaves, dp_degree)
    counts = [1] * dp_degree
    for _ in range(reduction_leaves - dp_degree):
        counts[min(range(dp_degree), key=lambda r: ((counts[r] + 1) / speeds[r], r))] += 1
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    return tuple(bounds)


@lru_cache(maxsize=4096)
def _even(reduction_leaves: int, dp_degree: int) -> tuple[int, ...]:
    return (0, *(high for _, high in deal_leaves(reduction_leaves, dp_degree)))


@lru_cache(maxsize=4096)
def micro_batch_counts(leaf_bounds: tuple[int, ...], num_microbatches: int, reduction_leaves: int) -> tuple[int, ...]:
    """Micro-batches of each replica."""
    starts = [leaf_micro_batches(leaf, num_microbatches, reduction_leaves).start for leaf in leaf_bounds[:-1]]
    starts.append(num_microbatches)
    return tuple(high - low for low, high in zip(starts, starts[1:], strict=False))


def tree_pieces(low: int, high: int) -> int:
    """Aligned sub-trees that the leaves [low, high) consist of: the partial sums a replica must send."""
    pieces = 0
    while low < high:
        width = low & -low if low else 1 << ((high - low).bit_length() - 1)
        while width > high - low:
            width //= 2
        low += width
        pieces += 1
    return pieces


@lru_cache(maxsize=4096)
def exchange_bytes_factor(leaf_bounds: tuple[int, ...]) -> float:
    """Bytes that the busiest replica sends, as a multiple of its stage's gradient bytes, in the exact exchange.

    All-to-all: each piece in chunks to the other dp - 1 members, (dp - 1) / dp of the gradient a piece; then the all-gather
    of the summed chunk, (dp - 1) / dp once more. One piece a replica gives a ring's bytes, 2 (dp - 1) / dp
    (three replicas of eight leaves exchange five pieces instead of three).
    """
    dp_degree = len(leaf_bounds) - 1
    busiest = max(tree_pieces(low, high) for low, high in zip(leaf_bounds, leaf_bounds[1:], strict=False))
    return (dp_degree - 1) / dp_degree * (busiest + 1)


def gradient_buffers(most_leaves: int) -> int:
    """Gradient buffers that a replica of `most_leaves` leaves holds at once: one, and one for each level of its sub-tree."""
    return 1 + (most_leaves - 1).bit_length()
