"""Messages between the stages of tensor-parallel groups: a tensor crosses once a group, and is gathered where it arrives.

All members of a group hold the same whole tensor, so each sends an equal share of it to its counterpart in the next group, in its
own line: consecutive elements in rank order, padded where they do not divide. The receivers all-gather the shares inside their
group, which copies bytes and changes no bit.

A gather is a collective of the receiving group, beside its sums over tiles. It runs when a member waits for the message, which is
before the computation that needs it. Members of a group run the same program, so they enter all their collectives in one order.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from frostline_trainer.transport.collectives import Group
from frostline_trainer.transport.transport import Transfer, Transport


def once_a_group(line: Transport, group: Group | None) -> Transport:
    """The transport of a member whose messages cross once a group; its own line's without a group.

    Args:
        line: carries the member's messages along the pipeline.
        group: its tensor-parallel group. The groups of all stages have the same size.
    """
    return line if group is None or group.size == 1 else GroupTransport(line, group)


def share_length(elements: int, members: int) -> int:
    """Elements of each member's share of a tensor, the padding of the last ones included."""
    return -(-elements // members)


def own_share(tensor: Tensor, group: Group) -> Tensor:
    """The share of a tensor that a member sends, flat: a view of it, or a padded copy."""
    flat = tensor.contiguous().view(-1)
    each = share_length(flat.numel(), group.size)
    share = flat[group.index * each : (group.index + 1) * each]
    return share if share.numel() == each else torch.nn.functional.pad(share, (0, each - share.numel()))


def gather_shares(group: Group, share: Tensor, whole: Tensor) -> None:
    """Fill the contiguous `whole` of every member from all members' shares. Collective.

    Bytes are gathered, since not every library knows every type.
    """
    flat, each = whole.view(-1), share.numel()
    divides = each * group.size == flat.numel()
    gathered = flat if divides else share.new_empty(each * group.size)
    group.all_gather(gathered.view(torch.uint8), share.view(torch.uint8))
    if not divides:
        flat.copy_(gathered[: flat.numel()])


def own_line(transport: Transport) -> Transport:
    """The transport of a member's own line, on which a tensor crosses as it is, whether or not the member is in a group."""
    return transport.line if isinstance(transport, GroupTransport) else transport


class Arrival:
    """A tensor under way to a group: this member's share of it, and the gather that follows. A Transfer, with one wait."""

    def __init__(self, group: Group, whole: Tensor, share: Tensor, transfer: Transfer) -> None:
        self._group, self._whole, self._share, self.transfer = group, whole, share, transfer

    def wait(self) -> None:
        """Wait for the share, then gather. Collective: all members wait for the same messages in the same order.

        Raises RuntimeError as `Transfer.wait`, and if the group is interrupted.
        """
        self.transfer.wait()
        self.gather()

    def gather(self) -> None:
        """Gather the whole tensor from the shares, after this member's share has arrived. Collective."""
        gather_shares(self._group, self._share, self._whole)


class GroupTransport:
    """A Transport over a member's line, which carries its share of each tensor.

    It keeps the line's promises (`transport.transport`), and asks for more: waits are collective over the group. Whoever
    interrupts or closes it does so with the group too, since `Groups` holds both.
    """

    def __init__(self, line: Transport, group: Group) -> None:
        self._line, self._group = line, group

    @property
    def index(self) -> int:
        """Own pipeline rank."""
        return self._line.index

    @property
    def size(self) -> int:
        """Number of members of the line."""
        return self._line.size

    @property
    def line(self) -> Transport:
        """The member's own line, for tensors of which each member of the group has another part."""
        return self._line

    def send(self, tensor: Tensor, to: int) -> Transfer:
        """Start sending this member's share to its counterpart."""
        return self._line.send(own_share(tensor, self._group), to)

    def receive(self, tensor: Tensor, source: int) -> Arrival:
        """Start receiving this member's share; `tensor`, contiguous, is filled in the wait."""
        share = tensor.new_empty(share_length(tensor.numel(), self._group.size))
        return Arrival(self._group, tensor, share, self._line.receive(share, source))

    def wait_all(self, transfers: Sequence[Transfer]) -> None:
        """Wait for several transfers at the cost of one wait, then gather what has arrived, in their order."""
        self._line.wait_all([one.transfer if isinstance(one, Arrival) else one for one in transfers])
        for one in transfers:
            if isinstance(one, Arrival):
                one.gather()

    def check(self) -> None:
        """Raise RuntimeError if the line or the group was interrupted or has failed."""
        self._line.check()
        self._group.check()

    def interrupt(self) -> None:
        """Interrupt the line and the group."""
        self._line.interrupt()
        self._group.interrupt()

    def close(self) -> None:
        """Close the line; the group has more users, which close it."""
        self._line.close()
