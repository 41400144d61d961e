"""The dealing of leaves to replicas; time and memory of sums and exchange that follow from it (docs/protocols.md 1.2)."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from frostline_contract.shape import deal_leaves, leaf_micro_batches
from frostline_controller.planner.inputs import PlanInputs


def deal_by_speed(reduction_leaves: int, speeds: list[float]) -> tuple[int, ...]:
    """Return the leaf bounds (dp_degree + 1 of them) with which the slowest replica ends as early as possible.

    Every replica gets at least one leaf. Each next leaf goes to the replica that would end first with it; that minimises the
    largest leaves / speed. With equal speeds leaves are dealt evenly, as in the contract.

    Args:
        reduction_leaves: leaves to be dealt.
        speeds: one a replica, relative.
    """
    dp_degree = len(speeds)
    assert dp_degree <= reduction_leaves, f"{dp_degree} replicas for {reduction_leaves} leaves"
    if max(speeds) - min(speeds) < 1e-9:
        return deal_evenly(reduction_leaves, dp_degree)
    counts = [1] * dp_degree
    for _ in range(reduction_leaves - dp_degree):
        counts[min(range(dp_degree), key=lambda r: ((counts[r] + 1) / speeds[r], r))] += 1
    bounds = [0]
    for count in counts:
        bounds.append(bounds[-1] + count)
    return tuple(bounds)


@lru_cache(maxsize=4096)
def deal_evenly(reduction_leaves: int, dp_degree: int) -> tuple[int, ...]:
    """Return the leaf bounds of replicas of equal speed."""
    return (0, *(high for _, high in deal_leaves(reduction_leaves, dp_degree)))


def slowest_replica(micro_batches: Sequence[int], speeds: Sequence[float]) -> int:
    """Return the dp rank of the replica that ends last, the first of equal ones.

    Args:
        micro_batches: of each replica.
        speeds: one a replica, that of its slowest member.
    """
    return max(range(len(speeds)), key=lambda dp_rank: (micro_batches[dp_rank] / speeds[dp_rank], -dp_rank))


@lru_cache(maxsize=4096)
def micro_batch_counts(leaf_bounds: tuple[int, ...], num_microbatches: int, reduction_leaves: int) -> tuple[int, ...]:
    """Return the number of micro-batches of each replica."""
    starts = [leaf_micro_batches(leaf, num_microbatches, reduction_leaves).start for leaf in leaf_bounds[:-1]]
    starts.append(num_microbatches)
    return tuple(high - low for low, high in pairwise(starts))


def tree_pieces(low: int, high: int) -> int:
    """Return the number of aligned sub-trees in the leaves [low, high), which is that of the partial sums a replica must send."""
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
    """Return the bytes that the busiest replica sends in the exact exchange, as a multiple of its stage's gradient bytes.

    An all-to-all sends each partial sum in chunks to the other dp - 1 members, (dp - 1) / dp of the gradient a sum; then an
    all-gather sends the summed chunk, (dp - 1) / dp once more. With one partial sum a replica these are a ring's bytes,
    2 (dp - 1) / dp (three replicas of eight leaves exchange five partial sums instead of three).
    """
    dp_degree = len(leaf_bounds) - 1
    busiest = max(tree_pieces(low, high) for low, high in pairwise(leaf_bounds))
    return (dp_degree - 1) / dp_degree * (busiest + 1)


def gradient_buffers(inputs: PlanInputs, leaf_bounds: tuple[int, ...]) -> float:
    """Return a stage's gradient buffers and its exchange's workspace on the fullest replica, in multiples of its gradient.

    In an audit a micro-batch's gradient is computed again apart from the sums. leaf_bounds: dp_degree + 1 leaf indices.
    """
    if not inputs.exact_numerics:
        return 1.0
    several = inputs.num_microbatches > inputs.reduction_leaves or inputs.token_cells > 1
    apart = 1 if inputs.has_audits else 0
    own = summing_buffers(leaf_bounds, several) + apart
    return own + exchange_buffers(leaf_bounds, own, inputs.is_sharded)


@lru_cache(maxsize=4096)
def summing_buffers(leaf_bounds: tuple[int, ...], several: bool) -> int:
    """Return the most gradient buffers that a replica holds while it sums its leaves: the sums so far, and the open one.

    Args:
        leaf_bounds: dp_degree + 1 leaf indices.
        several: a leaf is the sum of several gradients (of its micro-batches, or cells). A leaf of one gradient is added straight
            to the sum of its left sibling.
    """
    return max(_most_sums(low, high, several) for low, high in pairwise(leaf_bounds))


def _most_sums(low: int, high: int, several: bool) -> int:
    most, sums = 0, list[tuple[int, int]]()  # (first leaf, leaves) of each sum so far
    for leaf in range(low, high):
        has_sibling = bool(leaf & 1 and sums and sums[-1] == (leaf - 1, 1))
        most = max(most, len(sums) + (1 if several or not has_sibling else 0))
        first, leaves = leaf, 1
        while sums and first & leaves and sums[-1] == (first - leaves, leaves):
            first, leaves = sums.pop()[0], 2 * leaves
        sums.append((first, leaves))
    return most


@lru_cache(maxsize=4096)
def exchange_buffers(leaf_bounds: tuple[int, ...], summing: int, is_sharded: bool) -> float:
    """Return the workspace of the exact exchange on the fullest replica, as a multiple of its stage's gradient bytes.

    Two replicas of one partial sum each exchange in place. Others receive their chunk of every partial sum, and pack their own
    into another place if they have several. Where state is shared out, replicas of one partial sum pack it into a second buffer.

    Args:
        leaf_bounds: dp_degree + 1 leaf indices.
        summing: buffers that the replica has from its own sums (`summing_buffers`).
        is_sharded: each replica receives the sum of its share alone.
    """
    dp_degree = len(leaf_bounds) - 1
    pieces = [tree_pieces(low, high) for low, high in pairwise(leaf_bounds)]
    if dp_degree == 1:
        return 0.0
    if max(pieces) > 1:
        return sum(pieces) / dp_degree + max(pieces)
    if is_sharded:
        return float(max(0, 2 - summing))
    return 0.0 if dp_degree == 2 else 1.0
