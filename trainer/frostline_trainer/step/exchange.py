"""All-reduce of a stage's gradients over its data-parallel group, in the summation tree's order (docs/protocols.md 1.2).

Every replica holds the sums of its own aligned tree nodes. An all-to-all gives each replica one chunk of all nodes; the replica
sums that chunk in tree order; an all-gather puts the chunks together. If every replica holds one node, this moves as many bytes
as a ring all-reduce (docs/design.md 12.4), and the node is sent from, and received into, the memory in which it was summed.
On CPUs the summed chunk is copied for each receiver, into memory that is free by then: gloo's all-gather holds results twice.

If machines have several replicas each, and the leaves of a machine are one tree node, the sum has two levels (`Levels`): first
within each machine, then between machines, each member for its own chunk. The tree is the same, so the bits are too. With N
replicas a machine, only an Nth of the bytes leaves a machine.
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
    """The number of replicas on each machine if sums have two levels; 0 if they have one.

    Sums have two levels if there are several machines, all with the same number of replicas, more than one; if the replicas of a
    machine are neighbours in the order of leaves; and if their leaves are one node of the tree.

    Args:
        machines: The machine of each replica, by replica number.
        leaf_bounds: Leaf bounds of the replicas, one more than replicas.
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
    """All-reduce this stage's gradient of the step. Returns a flat buffer, with the same bits on every member of `replicas`."""
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
        # a + b = b + a: the library's all-reduce over two members has the tree's bits.
        (total,) = own.values()
        replicas.all_reduce_sum(total)
        return total
    return _exchange(buffers, replicas, own, pieces, num_leaves)


def scatter_gradients(
    buffers: GradientBuffers, replicas: Group, leaf_bounds: tuple[int, ...], num_leaves: int, shares: Sequence[Share]
) -> torch.Tensor:
    """Reduce-scatter this stage's gradient of the step: each replica gets the elements of its own share.

    shares: of each replica. Returns a buffer of the stage that begins with this member's share, packed.
    """
    own = buffers.pieces()
    pieces = [aligned_pieces(low, high, num_leaves) for low, high in zip(leaf_bounds, leaf_bounds[1:], strict=False)]
    mine, length = [own[node] for node in pieces[replicas.index]], shares[replicas.index].length
    sent, got = [len(mine) * share.length for share in shares], [len(nodes) * length for nodes in pieces]
    # If every replica has one node, its memory is the receive buffer once it is packed: no more buffers than an all-reduce.
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
    tree, rows = _share_out(buffers, replicas, mine, pieces, num_leaves)
    for value in mine[1:]:
        buffers.recycle(value)
    put_together(replicas, mine[0], tree.take(0, num_leaves), rows[: replicas.size])
    return mine[0]


def _over_machines(buffers: GradientBuffers, replicas: Levels, leaf_bounds: tuple[int, ...], num_leaves: int) -> torch.Tensor:
    """The two-level sum: over the machine's nodes one chunk a member, then over machines a part of that chunk.

    It takes no more memory than one level.
    """
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
    put_together(near, mine[0], value, rows[: near.size])
    return mine[0]


def _between_machines(far: Group, value: torch.Tensor, free: torch.Tensor, leaves: int, num_leaves: int) -> None:
    """Sum the machines' nodes into `value`. leaves: of each machine. free: workspace of the same size."""
    part = [value.numel() // far.size] * far.size
    far.all_to_all(free, value, part, part)
    tree = TreeSum(num_leaves)
    for machine, chunk in enumerate(free.view(far.size, -1)):
        tree.push(machine * leaves, leaves, chunk)
    put_together(far, value, tree.take(0, num_leaves), free)


def put_together(group: Group, output: torch.Tensor, own: torch.Tensor, room: torch.Tensor) -> None:
    """Fill `output` with every member's chunk, by an all-gather.

    gloo's own all-gather holds the output twice. So on CPUs members send copies of their chunk from `room`, by an all-to-all.
    What gloo carries for a GPU is in host memory, and more copies would be more to bring there.

    Args:
        own: This member's chunk; it may be a part of `room`.
        room: Workspace of the size of `output`.
    """
    if group.backend != "gloo" or own.device.type != "cpu":
        group.all_gather(output, own)
        return
    for copy in room.view(group.size, -1):
        if copy.data_ptr() != own.data_ptr():
            copy.copy_(own)
    counts = [own.numel()] * group.size
    group.all_to_all(output, room.view(-1), counts, counts)


def _share_out(
    buffers: GradientBuffers, group: Group, mine: list[torch.Tensor], pieces: list[list[tuple[int, int]]], num_leaves: int
) -> tuple[TreeSum, torch.Tensor]:
    """Give every member one chunk of all members' nodes, by an all-to-all, and sum this member's chunk.

    Args:
        mine: This member's nodes.
        pieces: The nodes of each member, as (low, size).

    Returns:
        The sums; and the receive buffer in which they lie, one row for each node's chunk. The other rows are free for reuse.
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
    """Chunk 0 of every node, then chunk 1 of every node, and so on: the chunks for one member are contiguous."""
    chunk = nodes[0].numel() // members
    together = buffers.room("outgoing", len(nodes) * nodes[0].numel()).view(members, len(nodes), chunk)
    for slot, node in enumerate(nodes):
        together[:, slot].copy_(node.view(members, chunk))
    return together.view(-1)
