"""Transports, which carry messages between the members of a pipeline: the interface with its promises, and one over gloo."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import torch

from frostline_trainer.transport.collectives import Group, Message, wait_all

NUMBERS = 1 << 16
"""Message numbers of a channel before the first is reused; more than are ever under way at once."""


class Transfer(Protocol):
    """A message under way, at one of its two ends. Dropping it without a wait gives the message up."""

    def wait(self) -> None:
        """Order the calling thread's later computations on the tensor's device behind the message.

        For host memory: wait until the message is done. On a GPU this may return while the message is still under way; it proves
        neither that the peer is alive nor that the contents have arrived. Raises RuntimeError if the transport is interrupted or
        has failed, as far as the host knows it by then.
        """
        ...


class Transport(Protocol):
    """Point-to-point messages between the members of a pipeline.

    A user may rely on these promises only (docs/protocols.md 1.17):

    Order. Each ordered pair (sender, receiver) is a channel of its own. Its n-th send meets its n-th receive, in the order of the
    calls; there are no tags, and the two tensors have the same shape and type. Channels do not wait for each other.

    When a send is done. Not before its receive has been posted; a transport may buffer, but users must not rely on it. The tensor
    must not change until `wait` of the transfer that `send` returned; the transport keeps it alive until then.

    Contents. A receive's tensor is undefined until `wait` of the transfer that `receive` returned; see `Transfer.wait` for
    devices.

    Silence. A peer that is gone or slow causes no error, only an endless wait. Another thread must notice it and interrupt.

    Interruption. `interrupt` may be called from any thread, any number of times. Waits of the host end soon, with RuntimeError;
    messages under way end at any point and leave undefined contents. The transport cannot be used afterwards.
    """

    @property
    def index(self) -> int:
        """Own place among the members, a pipeline rank."""
        ...

    @property
    def size(self) -> int:
        """Number of members of the pipeline."""

    def send(self, tensor: torch.Tensor, to: int) -> Transfer:
        """Start sending to a member."""
        ...

    def receive(self, tensor: torch.Tensor, source: int) -> Transfer:
        """Start filling `tensor` from a member."""
        ...

    def wait_all(self, transfers: Sequence[Transfer]) -> None:
        """Wait for several transfers, at the cost of one wait."""
        ...

    def check(self) -> None:
        """Raise RuntimeError if the transport was interrupted or has failed; on a device, waits may not have shown that."""
        ...

    def interrupt(self) -> None:
        """End the waits of the host with RuntimeError, soon; see "Interruption" above. Callable from any thread."""

    def close(self) -> None:
        """Close the connections."""
        ...


class GlooTransport:
    """A Transport over a gloo group; device tensors pass through host memory.

    gloo matches messages by tag. Both ends number a channel's messages and use the number as the tag, which matches by order.
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
        """Number of members of the group along the pipeline."""
        return self.group.size

    def send(self, tensor: torch.Tensor, to: int) -> Message:
        """Start sending with the channel's next number as the tag."""
        return self.group.send(tensor, to, _next(self._sent, to))

    def receive(self, tensor: torch.Tensor, source: int) -> Message:
        """Start filling `tensor` with the message of the channel's next number."""
        return self.group.expect(tensor, source, _next(self._received, source))

    def wait_all(self, transfers: Sequence[Message]) -> None:
        """Wait until all messages are done. Raises RuntimeError if the group is interrupted."""
        wait_all(transfers)

    def check(self) -> None:
        """Raise RuntimeError if the group was interrupted."""
        self.group.check()

    def interrupt(self) -> None:
        """Interrupt the group; collectives in the same group end too."""
        self.group.interrupt()

    def close(self) -> None:
        """Close the group's sockets."""
        self.group.close()


def _next(numbers: Counter[int], peer: int) -> int:
    number = numbers[peer] % NUMBERS
    numbers[peer] += 1
    return number
