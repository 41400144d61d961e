"""Gradients over the data-parallel group, in the tree's order, flat, one exchange a stage (PROTOCOLS 1, "The sum").

Every replica holds the sums of its own aligned tree nodes. All-to-all of chunks brings each replica one chunk of all nodes;
it sums that chunk in tree order; all-gather puts the chunks together. The bytes are a ring's where every replica holds one
node (facts/torch.md).
"""

import torch

from frostline_trainer.comm.collectives import Group
from frostline_trainer.engine.gradients import GradientBuffers
from frostline_trainer.engine.tree import TreeSum, aligned_pieces


def reduce_gradients(
    buffers: GradientBuffers, column: Group, leaf_bounds: tuple[int, ...], num_leaves: int, exact: bool
) -> torch.Tensor:
    """The step's gradient of this stage: the same bits on every member of `column`. Returns a flat buffer of the stage."""
    if not exact:
        total = buffers.take_accumulated()
        column.all_reduce_sum(total)
        return total
    own = buffers.pieces()
    if column.size == 1:
        return own[(0, num_leaves)]
    pieces = [aligned_pieces(low, high, num_leaves) for low, high in zip(leaf_bounds, leaf_bounds[1:], strict=False)]
    if column.size == 2 and len(pieces[0]) == len(pieces[1]) == 1:
        # a + b = b + a: the library's sum of two has the tree's bits.
        (total,) = own.values()
        column.all_reduce_sum(total)
        return total
    return _exchange(buffers, column, own, pieces, num_leaves)


def _exchange(
    buffers: GradientBuffers,
    column: Group,
    own: dict[tuple[int, int], torch.Tensor],
    pieces: list[list[tuple[int, int]]],
    num_leaves: int,
) -> torch.Tensor:
    members, length = column.size, buffers.length
    chunk = -(-length // members)
    mine = [own[node] for node in pieces[column.index]]
    like = mine[0]
    # Chunk j of each of my nodes, for each member j in turn; the last chunk may be short and is padded.
    outgoing = like.new_zeros(members, len(mine), chunk)
    for slot, value in enumerate(mine):
        whole = length // chunk * chunk
        outgoing[: whole // chunk, slot].copy_(value[:whole].view(-1, chunk))
        if whole < length:
            outgoing[whole // chunk, slot, : length - whole].copy_(value[whole:])
    counts = [len(nodes) * chunk for nodes in pieces]
    incoming = like.new_empty(sum(counts))
    column.all_to_all(incoming, outgoing.view(-1), counts, [len(mine) * chunk] * members)
    tree = TreeSum(num_leaves)
    nodes = [node for replica in pieces for node in replica]
    for (low, size), value in zip(nodes, incoming.view(-1, chunk), strict=True):
        tree.push(low, size, value)
    gathered = like.new_empty(members * chunk)
    column.all_gather(gathered, tree.take(0, num_leaves))
    for value in mine[1:]:
        buffers.recycle(value)
    return mine[0].copy_(gathered[:length])
