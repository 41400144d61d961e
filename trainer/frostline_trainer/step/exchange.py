"""Gradients over the data-parallel group, in the tree's order, flat, one exchange a stage (docs/protocols.md 1.2).

Every replica holds the sums of its own aligned tree nodes. All-to-all of chunks brings each replica one chunk of all nodes;
it sums that chunk in tree order; all-gather puts the chunks together. The bytes are a ring's where every replica holds one
node (docs/design.md 12.4), and then nothing is copied: the node is sent from where it was summed and received into the same
memory.
"""

import torch

from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.tree import TreeSum, aligned_pieces
from frostline_trainer.transport.collectives import Group


def reduce_gradients(
    buffers: GradientBuffers, replicas: Group, leaf_bounds: tuple[int, ...], num_leaves: int, exact: bool
) -> torch.Tensor:
    """The step's gradient of this stage: the same bits on every member of `replicas`. Returns a flat buffer of the stage."""
    if not exact:
        total = buffers.take_accumulated()
        replicas.all_reduce_sum(total)
        return total
    own = buffers.pieces()
    if replicas.size == 1:
        return own[(0, num_leaves)]
    pieces = [aligned_pieces(low, high, num_leaves) for low, high in zip(leaf_bounds, leaf_bounds[1:], strict=False)]
    if replicas.size == 2 and len(pieces[0]) == len(pieces[1]) == 1:
        # a + b = b + a: the library's sum of two has the tree's bits.
        (total,) = own.values()
        replicas.all_reduce_sum(total)
        return total
    return _exchange(buffers, replicas, own, pieces, num_leaves)


def _exchange(
    buffers: GradientBuffers,
    replicas: Group,
    own: dict[tuple[int, int], torch.Tensor],
    pieces: list[list[tuple[int, int]]],
    num_leaves: int,
) -> torch.Tensor:
    members, chunk = replicas.size, buffers.chunk
    mine = [own[node] for node in pieces[replicas.index]]
    outgoing = mine[0] if len(mine) == 1 else _interleaved(mine, buffers, members)
    counts = [len(nodes) * chunk for nodes in pieces]
    incoming = buffers.room("incoming", sum(counts))
    replicas.all_to_all(incoming, outgoing, counts, [len(mine) * chunk] * members)
    tree = TreeSum(num_leaves)
    nodes = [node for replica in pieces for node in replica]
    for (low, size), value in zip(nodes, incoming.view(-1, chunk), strict=True):
        tree.push(low, size, value)
    for value in mine[1:]:
        buffers.recycle(value)
    replicas.all_gather(mine[0], tree.take(0, num_leaves))
    return mine[0]


def _interleaved(nodes: list[torch.Tensor], buffers: GradientBuffers, members: int) -> torch.Tensor:
    """Chunk 0 of every node, then chunk 1 of every node, and so on: what goes to one member lies together."""
    together = buffers.room("outgoing", len(nodes) * nodes[0].numel()).view(members, len(nodes), buffers.chunk)
    for slot, node in enumerate(nodes):
        together[:, slot].copy_(node.view(members, buffers.chunk))
    return together.view(-1)
