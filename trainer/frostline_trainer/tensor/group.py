"""Tensor-parallel groups: the tiles of each rank, sums over the group's columns or levels, and gathers in it.

A sum of two nodes has the same bits in any order, so a group of two uses the library's all-reduce. Larger groups exchange chunks
by an all-to-all, add them by pairs in rank order, and all-gather the sums. This moves as many bytes as a ring all-reduce, whose
bits would depend on the group's size.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from frostline_trainer.step.alignment import aligned
from frostline_trainer.tensor.hidden import WHOLE_WIDTH, Hidden
from frostline_trainer.tensor.pairs import pairwise
from frostline_trainer.tensor.rows import WHOLE, Rows
from frostline_trainer.tensor.tiles import Tiles
from frostline_trainer.transport.collectives import Group


class _Line:
    """Exchanges over a line of a tensor-parallel group. ahead: as of `tiles_in`."""

    def __init__(self, group: Group, ahead: int = 0) -> None:
        self._group, self._ahead = group, ahead

    def sum(self, node: Tensor) -> Tensor:
        """The sum of all members' nodes, on each."""
        return sum_nodes(self._group, node, self._ahead)

    def _gathered(self, own: Tensor) -> Tensor:
        """All members' tensors (size, ...), by member; bytes are gathered, since not every library knows every type."""
        own = own.contiguous()
        found = own.new_empty(self._group.size, *own.shape)
        self._group.all_gather(found.view(-1).view(torch.uint8), own.view(-1).view(torch.uint8))
        return found

    def _members(self) -> list[int]:
        """The members in the order of the places whose work they do."""
        return [(place - self._ahead) % self._group.size for place in range(self._group.size)]


class GroupRows(_Line):
    """A `RowExchange` over a tensor-parallel group."""

    def gather(self, own: Tensor) -> Tensor:
        """All members' samples."""
        found = self._gathered(own)
        return aligned(torch.cat([found[member] for member in self._members()]) if self._ahead else found.flatten(0, 1))

    def scatter_sum(self, node: Tensor) -> Tensor:
        """This member's rows of the sum; as many bytes as the first half of `sum_nodes`."""
        size = self._group.size
        parts = node.contiguous().chunk(size)
        sent = torch.cat([parts[(member + self._ahead) % size] for member in range(size)]) if self._ahead else torch.cat(parts)
        received, counts = torch.empty_like(sent), [sent.numel() // size] * size
        self._group.all_to_all(received.view(-1), sent.view(-1), counts, counts)
        by_member = received.chunk(size)
        return pairwise([by_member[member] for member in self._members()])


def rows_in(group: Group, total: int, ahead: int = 0) -> Rows:
    """The row tiles that a member of a group computes if the group divides a micro-batch's samples.

    Args:
        group: the member's.
        total: row tiles of the run; a multiple of the group's size.
        ahead: as of `tiles_in`.
    """
    if group.size == 1:
        return Rows(total)
    held = total // group.size
    return Rows(total, (group.index + ahead) % group.size * held, held, GroupRows(group, ahead))


class GroupLevels(_Line):
    """A `LevelExchange` over the levels of a tensor-parallel group."""

    def gather(self, own: Tensor) -> Tensor:
        """All levels' parts of the hidden width side by side."""
        found = self._gathered(own)
        return aligned(torch.cat([found[member] for member in self._members()], 1))


def hidden_in(group: Group | None, total: int, ahead: int = 0) -> Hidden:
    """The hidden tiles that a member of a group computes.

    Args:
        group: the member's line along the levels; None: it computes all hidden tiles.
        total: hidden tiles of the run; a multiple of the number of levels.
        ahead: as of `tiles_in`, in levels.
    """
    if group is None or group.size == 1:
        return Hidden(total)
    held = total // group.size
    return Hidden(total, (group.index + ahead) % group.size * held, held, GroupLevels(group, ahead))


def tiles_in(group: Group | None, total: int, rows: Rows = WHOLE, ahead: int = 0, hidden: Hidden = WHOLE_WIDTH) -> Tiles:
    """The tiles that a member of a group computes: consecutive ones, the same number for each member.

    Args:
        group: the member's line along the columns; None: it computes all inner tiles.
        total: inner tiles of the run.
        rows: the row tiles that it computes.
        ahead: for work that all members compute again in each other's places (audits): the tiles of the member so many columns
            on, cyclically.
        hidden: the hidden tiles that it computes.

    Raises:
        ValueError: the number of columns is no power of two, or exceeds the number of tiles.
    """
    if group is None or group.size == 1:
        return Tiles(total, rows=rows, hidden=hidden)
    if group.size & (group.size - 1):
        raise ValueError(f"tp_columns is {group.size}; only powers of two share the tiles of a block")
    if group.size > total:
        raise ValueError(
            f"tp_columns {group.size} exceeds training.tensor_tiles.inner {total}: each rank needs a tile; raise it in a new run "
            "or take fewer columns"
        )
    held, place = total // group.size, (group.index + ahead) % group.size
    return Tiles(total, place * held, held, lambda node: sum_nodes(group, node, ahead), rows, hidden)


def gather_runs(group: Group, rows: Sequence[Sequence[tuple[bool, Tensor]]]) -> None:
    """All-gather tensors of one type in place: each member sends its row to all others. Collective.

    rows: by member, (whether the tensor stays as it is here, the tensor).
    """
    room = max((sum(view.numel() for _, view in views) for views in rows), default=0)
    if not room:
        return
    like = next(view for views in rows for _, view in views)
    own = torch.cat([view.reshape(-1) for _, view in rows[group.index]] or [like.new_empty(0)])
    if own.numel() < room:
        own = torch.nn.functional.pad(own, (0, room - own.numel()))
    gathered = own.new_empty(group.size * room)
    group.all_gather(gathered, own)
    for place, views in enumerate(rows):
        start = place * room
        for stays, view in views:
            if not stays:
                view.copy_(gathered[start : start + view.numel()].view(view.shape))
            start += view.numel()


def sum_nodes(group: Group, node: Tensor, ahead: int = 0) -> Tensor:
    """The sum of all members' nodes, by pairs in tile order, with the same bits on each. `node` is not changed.

    ahead: as of `tiles_in`.
    """
    flat = node.reshape(-1)
    if group.size == 2:
        total = flat.clone()
        group.all_reduce_sum(total)
        return total.view(node.shape)
    each = -(-flat.numel() // group.size)
    padded = torch.nn.functional.pad(flat, (0, each * group.size - flat.numel()))
    chunks = torch.empty_like(padded)
    group.all_to_all(chunks, padded, [each] * group.size, [each] * group.size)
    by_member = chunks.view(group.size, each).unbind(0)
    own = pairwise([by_member[(place - ahead) % group.size] for place in range(group.size)])
    group.all_gather(padded, own)
    return padded[: flat.numel()].view(node.shape)
