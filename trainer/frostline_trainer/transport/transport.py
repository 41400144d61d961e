"""Messages between the members of a pipeline row: what every transport promises, and the one over gloo."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import torch

from frostline_trainer.transport.collectives import Group, Message, wait_all

NUMBERS = 1 << 16
"""Numbers of a channel's messages before the first comes again; more than are ever under way at once."""


class Transfer(Protocol):
    """A message under way, at one of its two ends. Dropping it without a wait gives the message up."""

    def wait(self) -> None:
        """The calling thread's computations from now on come after the message, on the device that the tensor is on.

        On the host's own memory that means: the message is done. On a device the calling thread may go on while the message is
        still under way, and nothing may be concluded from this call: not that the peer lives, nor that the contents are there.
        Raises RuntimeError where the transport is interrupted or has failed, as far as the host knows it by then.
        """
        ...


class Transport(Protocol):
    """Point-to-point messages between the members of a pipeline row.

    What a user may rely on, and no more (docs/protocols.md 1.17):

    Order. Each ordered pair (sender, receiver) is a channel of its own. Its n-th send meets its n-th receive, in the order of the
    calls; there are no tags, and the two tensors have the same shape and type. Channels do not wait for each other.

    When a send is done. Not before its receive has been posted: a transport may buffer, and nobody may rely on that. The tensor
    must not change, and is kept alive, until `wait` of what `send` returned.

    Contents. What a receive fills holds anything until `wait` of what `receive` returned; see `Transfer.wait` for devices.

    Silence. A peer that is gone or slow is silence, for ever, and not an error. Somebody else must notice and interrupt.

    Interruption. `interrupt` may be called from any thread, any number of times. Waits of the host end soon, with RuntimeError;
    messages under way end anywhere, and what they were to fill holds anything. The transport is of no use afterwards.
    """

    @property
    def index(self) -> int:
        """Own place among the members, a pipeline rank."""
        ...

    @property
    def size(self) -> int:
        """Members of the pipeline row."""

    def send(self, tensor: torch.Tensor, to: int) -> Transfer:
        """Start sending to a member."""
        ...

    def receive(self, tensor: torch.Tensor, source: int) -> Transfer:
        """Start filling `tensor` from a member."""
        ...

    def wait_all(self, transfers: Sequence[Transfer]) -> None:
        """`Transfer.wait` of each, at the price of one."""
        ...

    def check(self) -> None:
        """Raise RuntimeError where the transport was interrupted or has failed, which on a device no wait may have said."""
        ...

    def interrupt(self) -> None:
        """End the waits of the host with RuntimeError, soon; see "Interruption" above. Callable from any thread."""

    def close(self) -> None:
        """Give the connections back."""
        ...


class GlooTransport:
    """A Transport over a gloo group; device tensors pass through host memory.

    gloo matches messages by tag. A channel's messages are numbered at both ends, which is matching by order.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()

    @property
    def index(self) -> int:
        """The group's index: the line's members are in the order of their pipeline ranks."""
        return self.group.index

    @property
    def size(self) -> int:
        """Members of the group along the pipeline."""
        return self.group.size

    def send(self, tensor: torch.Tensor, to: int) -> Message:
        """Start sending with the channel's next number as the tag."""
        return self.group.send(tensor, to, _next(self._sent, to))

    def receive(self, tensor: torch.Tensor, source: int) -> Message:
        """Start filling `tensor` with the message of the channel's next number."""
        return self.group.expect(tensor, source, _next(self._received, source))

    def wait_all(self, transfers: Sequence[Message]) -> None:
        """Wait until every one of these messages is done. Raises RuntimeError where the group is interrupted."""
        wait_all(transfers)

    def check(self) -> None:
        """Raises RuntimeError where the group was interrupted."""
        self.group.check()

    def interrupt(self) -> None:
        """Interrupt the group, which others may use too: collectives in it end as well."""
        self.group.interrupt()

    def close(self) -> None:
        """Close the group's sockets."""
        self.group.close()


def _next(numbers: Counter[int], peer: int) -> int:
    number = numbers[peer] % NUMBERS
    numbers[peer] += 1
    return number
