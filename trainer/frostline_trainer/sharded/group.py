"""The tiles of one rank of a group that shares the blocks, sums over the group, and gradients put together in it.

A sum of two nodes has one result in any order, so a group of two takes the library's own. Larger groups exchange chunks all to
all, add them by pairs in the ranks' order, and gather the sums: the bytes are those of a ring, whose bits depend on its size.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from frostline_trainer.sharded.state import cut_gradients
from frostline_trainer.sharded.tiles import Tiles, pairwise
from frostline_trainer.transport.collectives import Group


def tiles_in(group: Group, total: int) -> Tiles:
    """What a member of a group computes of a run's tiles: consecutive ones, equally many as any other.

    Raises ValueError where the group's size is no power of two, or exceeds the tiles.
    """
    if group.size & (group.size - 1):
        raise ValueError(f"tp_columns is {group.size}; only powers of two share the tiles of a block")
    if group.size > total:
        raise ValueError(
            f"tp_columns {group.size} exceeds training.tensor_tiles.inner {total}: each rank needs a tile; raise it in a new run "
            "or take fewer columns"
        )
    held = total // group.size
    if group.size == 1:
        return Tiles(total)
    return Tiles(total, group.index * held, held, lambda node: sum_nodes(group, node))


def alone_for(place: int, members: int, total: int) -> Tiles:
    """All of a run's tiles, computed by one worker that stands in for one of a group: only that member's tiles get gradients.

    Args:
        place: of the member in its group.
        members: of the group.
        total: tiles of the run.
    """
    held = total // members
    return Tiles(total, taught=(place * held, held) if members > 1 else None)


def complete_gradients(group: Group, units: Iterable[nn.Module]) -> None:
    """Collective: each member gets the gradients of the tiles that others have computed, unit by unit.

    Afterwards the units' `.grad`s are whole, and the same bits on every member. What no tile cuts all have computed alike.
    """
    for unit in units:
        found = list(cut_gradients(unit))
        if not found:
            continue
        own = torch.cat([one.tile(gradient, group.size, group.index).reshape(-1) for one, gradient in found])
        gathered = own.new_empty(group.size * own.numel())
        group.all_gather(gathered, own)
        lengths = [gradient.numel() // group.size for _, gradient in found]
        for place, chunk in enumerate(gathered.view(group.size, -1)):
            for (one, gradient), part in zip(found, chunk.split(lengths), strict=True) if place != group.index else ():
                one.put(gradient, group.size, place, part)


def sum_nodes(group: Group, node: Tensor) -> Tensor:
    """The sum of the nodes of all members, by pairs in their order; the same bits on each. `node` stays as it is."""
    flat = node.reshape(-1)
    if group.size == 2:
        total = flat.clone()
        group.all_reduce_sum(total)
        return total.view(node.shape)
    each = -(-flat.numel() // group.size)
    padded = torch.nn.functional.pad(flat, (0, each * group.size - flat.numel()))
    chunks = torch.empty_like(padded)
    group.all_to_all(chunks, padded, [each] * group.size, [each] * group.size)
    own = pairwise(chunks.view(group.size, each).unbind(0))
    group.all_gather(padded, own)
    return padded[: flat.numel()].view(node.shape)
