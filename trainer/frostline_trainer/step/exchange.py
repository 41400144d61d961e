"""Gradients over the data-parallel group, in the tree's order, flat, one exchange a stage (docs/protocols.md 1.2).

Every replica holds the sums of its own aligned tree nodes. All-to-all of chunks brings each replica one chunk of all nodes;
it sums that chunk in tree order; all-gather puts the chunks together. The bytes are a ring's where every replica holds one
node (docs/design.md 12.4), and then nothing is copied: the node is sent from where it was summed and received into the same
memory.

Where machines have several replicas each, whose leaves are one node together, the sum goes over two levels (`Levels`): first
within each machine, then between machines, each member for its own chunk. It is the same tree, so it has the same bits; what
changes is who carries what. With N replicas a machine, an Nth of the bytes leaves it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from frostline_trainer.step.gradients import GradientBuffers
from frostline_trainer.step.share import Share
from frostline_trainer.step.tree import TreeSum, aligned_pieces
from frostline_trainer.transport.collectives import Group


@dataclass(frozen=True)
class Levels:
    """The replicas of a stage, machine by machine.

    near: those on this member's machine. far: one of each machine, those with this member's place in it.
    """

    near: Group
    far: Group

    @property
    def size(self) -> int:
        """Replicas of the stage, over all machines."""
        return self.near.size * self.far.size


def replicas_a_machine(machines: Sequence[int], leaf_bounds: Sequence[int]) -> int:
    """How many replicas each machine has, where sums go over two levels; 0 where they do not.

    They do where several machines have equally many replicas, more than one, beside each other in the order of leaves, and the
    leaves of each are one node of the tree. machines: of each replica, by its number.
    """
    each = len(machines) // max(len(set(machines)), 1)
    blocks = [machines[first : first + each] for first in range(0, len(machines), each or 1)]
    if each < 2 or len(blocks) < 2 or any(len(block) < each or len(set(block)) > 1 for block in blocks):
        return 0
    bounds = [leaf_bounds[first] for first in range(0, len(machines) + 1, each)]
    whole = all(len(aligned_pieces(*ends, leaf_bounds[-1])) == 1 for ends in zip(bounds, bounds[1:], strict=False))
    return each if whole else 0


def reduce_gradients(
    buffers: GradientBuffers, replicas: Group | Levels, leaf_bounds: tuple[int, ...], num_leaves: int, exact: bool
) -> torch.Tensor:
    """The step's gradient of this stage: the same bits on every member of `replicas`. Returns a flat buffer of the stage."""
    if isinstance(replicas, Levels):
        assert exact, "sums whose order is the library's have one level"
        return _over_machines(buffers, replicas, leaf_bounds, num_leaves)
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


def scatter_gradients(
    buffers: GradientBuffers, replicas: Group, leaf_bounds: tuple[int, ...], num_leaves: int, shares: Sequence[Share]
) -> torch.Tensor:
    """The step's gradient of this stage, of each element at the replica whose share it is in: an exchange without its all-gather.

    shares: of each replica. Returns a buffer of the stage that begins with this member's share, packed.
    """
    own = buffers.pieces()
    pieces = [aligned_pieces(low, high, num_leaves) for low, high in zip(leaf_bounds, leaf_bounds[1:], strict=False)]
    mine, length = [own[node] for node in pieces[replicas.index]], shares[replicas.index].length
    sent, got = [len(mine) * share.length for share in shares], [len(nodes) * length for nodes in pieces]
    # Where every replica has one node its memory takes what comes as soon as it is packed: no more buffers than an all-reduce.
    in_place = max(sum(sent), sum(got)) <= mine[0].numel()
    outgoing = buffers.spare_buffer() if in_place else buffers.room("outgoing", sum(sent))
    place = 0
    for share in shares:
        for node in mine:
            share.pack(node, outgoing[place : place + share.length])
            place += share.length
    incoming = mine[0] if in_place else buffers.room("incoming", sum(got))
    replicas.all_to_all(incoming[: sum(got)], outgoing[: sum(sent)], got, sent)
    if in_place:
        buffers.recycle(outgoing)
    tree, first = TreeSum(num_leaves), 0
    for node in (node for nodes in pieces for node in nodes):
        tree.push(*node, incoming[first : first + length])
        first += length
    total = tree.take(0, num_leaves)
    if not in_place:
        mine[0][:length].copy_(total)
    for node in mine[1:]:
        buffers.recycle(node)
    return mine[0]


def _exchange(
    buffers: GradientBuffers,
    replicas: Group,
    own: dict[tuple[int, int], torch.Tensor],
    pieces: list[list[tuple[int, int]]],
    num_leaves: int,
) -> torch.Tensor:
    mine = [own[node] for node in pieces[replicas.index]]
    tree, _ = _share_out(buffers, replicas, mine, pieces, num_leaves)
    for value in mine[1:]:
        buffers.recycle(value)
    replicas.all_gather(mine[0], tree.take(0, num_leaves))
    return mine[0]


def _over_machines(buffers: GradientBuffers, replicas: Levels, leaf_bounds: tuple[int, ...], num_leaves: int) -> torch.Tensor:
    """Each member sums one chunk of its machine's nodes, and of that chunk a part over machines; it takes one level's memory."""
    near, far, own = replicas.near, replicas.far, buffers.pieces()
    first = far.index * near.size
    bounds = leaf_bounds[first : first + near.size + 1]
    pieces = [aligned_pieces(low, high, num_leaves) for low, high in zip(bounds, bounds[1:], strict=False)]
    mine = [own[node] for node in pieces[near.index]]
    tree, rows = _share_out(buffers, near, mine, pieces, num_leaves)
    ((low, size),) = tree.nodes
    value = tree.take(low, size)
    if far.size == 2:
        far.all_reduce_sum(value)
    else:
        _between_machines(far, value, rows[1], size, num_leaves)
    for other in mine[1:]:
        buffers.recycle(other)
    near.all_gather(mine[0], value)
    return mine[0]


def _between_machines(far: Group, value: torch.Tensor, free: torch.Tensor, leaves: int, num_leaves: int) -> None:
    """The sum of the machines' nodes, into `value`. leaves: of each. free: memory of the same size, any content."""
    part = [value.numel() // far.size] * far.size
    far.all_to_all(free, value, part, part)
    tree = TreeSum(num_leaves)
    for machine, chunk in enumerate(free.view(far.size, -1)):
        tree.push(machine * leaves, leaves, chunk)
    far.all_gather(value, tree.take(0, num_leaves))


def _share_out(
    buffers: GradientBuffers, group: Group, mine: list[torch.Tensor], pieces: list[list[tuple[int, int]]], num_leaves: int
) -> tuple[TreeSum, torch.Tensor]:
    """Every member gets one chunk of all members' nodes, and sums it. pieces: the nodes of each member; mine: this one's.

    Returns the sums, and the memory in which they and what is no longer needed lie, a node's chunk a row.
    """
    chunk = mine[0].numel() // group.size
    outgoing = mine[0] if len(mine) == 1 else _interleaved(mine, buffers, group.size)
    counts = [len(nodes) * chunk for nodes in pieces]
    incoming = buffers.room("incoming", sum(counts))
    group.all_to_all(incoming, outgoing, counts, [len(mine) * chunk] * group.size)
    tree, rows = TreeSum(num_leaves), incoming.view(-1, chunk)
    nodes = [node for member in pieces for node in member]
    for (low, size), value in zip(nodes, rows, strict=True):
        tree.push(low, size, value)
    return tree, rows


def _interleaved(nodes: list[torch.Tensor], buffers: GradientBuffers, members: int) -> torch.Tensor:
    """Chunk 0 of every node, then chunk 1 of every node, and so on: what goes to one member lies together."""
    chunk = nodes[0].numel() // members
    together = buffers.room("outgoing", len(nodes) * nodes[0].numel()).view(members, len(nodes), chunk)
    for slot, node in enumerate(nodes):
        together[:, slot].copy_(node.view(members, chunk))
    return together.view(-1)
