"""The frozen prefix of a tensor-parallel group: its members divide the micro-batches, so that each is read or computed once.

A member reads (or computes, with all tiles) the boundary activations of its consecutive share of a replica's micro-batches; then
an exchange gives all members all of them. The bits are the same, whoever reads or computes an activation.
"""

from collections.abc import Sequence

import torch

from frostline_trainer.prefix.prefix import PrefixReader
from frostline_trainer.transport.collectives import Group


class DealtPrefix:
    """One member's reader of a replica's boundary activations, with the interface of its own reader.

    Args:
        own: reads and computes this member's share.
        group: the members, each with a reader; a replica has at least one micro-batch for each.
        size: samples of a micro-batch.
    """

    def __init__(self, own: PrefixReader, group: Group, size: int) -> None:
        self._own, self._group, self._size = own, group, size

    def rows(self, samples: Sequence[int], variants: Sequence[int]) -> torch.Tensor:
        """The boundary activations of whole micro-batches. Collective: all members ask for the same samples."""
        share, most = self._share(len(samples), self._group.index), self._share(len(samples), self._group.size - 1)
        own = self._own.rows(samples[share], variants[share])
        length = most.stop - most.start
        mine = own.new_empty(length, *own.shape[1:])
        mine[: len(own)] = own
        gathered = own.new_empty(self._group.size * length, *own.shape[1:])
        self._group.all_gather(gathered.view(torch.uint8), mine.view(torch.uint8))
        shares = [self._share(len(samples), member) for member in range(self._group.size)]
        return torch.cat([gathered[n * length :][: one.stop - one.start] for n, one in enumerate(shares)])

    def prefetch(self, samples: Sequence[int], variants: Sequence[int]) -> None:
        """Prefetch this member's share of the samples that a coming step will read."""
        share = self._share(len(samples), self._group.index)
        self._own.prefetch(samples[share], variants[share])

    def audit(self, samples: Sequence[int], variants: Sequence[int], rows: torch.Tensor, step: int) -> None:
        """Recompute this member's share of the samples to be audited, and compare bits. Raises CacheDiffers."""
        share = self._share(len(samples), self._group.index)
        self._own.audit(samples[share], variants[share], rows[share], step)

    def _share(self, rows: int, member: int) -> slice:
        """A member's rows: consecutive micro-batches; no member has more than the last one."""
        count, members = rows // self._size, self._group.size
        return slice(self._size * (member * count // members), self._size * ((member + 1) * count // members))


def all_have(group: Group, prefix: object, device: torch.device) -> bool:
    """Whether each member of a group reads the prefix through a cache. Collective.

    Members may differ: one may have joined before there was a cache server.

    Args:
        group: the members.
        prefix: this member's reader; None: it has no cache.
        device: of the group's tensors.
    """
    count = torch.tensor([float(prefix is not None)], device=device)
    group.all_reduce_sum(count)
    return int(count) == group.size
