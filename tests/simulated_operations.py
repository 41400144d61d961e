"""The operations of simulated NCCL, the members that call them, and the effects of operations on memory at device time."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tests.run_ahead import OnDevice

GARBAGE = 1e30
Lane = tuple[str, Any]
"""(communicator's group, members): a queue that runs its operations in order."""


@dataclass
class Operation:
    """One call of one member.

    owner: its global rank. member, peer: places in the communicator's group. started: whether the member's device has reached it.
    deadline: by `time.monotonic`, after which the library ends the process that waits for it.
    """

    kind: str
    owner: int
    member: int
    lane: Lane
    peer: int
    reads: list[torch.Tensor]
    writes: list[torch.Tensor]
    counts: tuple[int, ...] = ()
    done: bool = False
    started: bool = True
    deadline: float = math.inf

    def __str__(self) -> str:
        return f"{self.kind} {f'with {self.peer} ' if self.kind in ('send', 'recv') else ''}on {self.lane}"


@dataclass
class Member:
    """A thread that plays one rank and its device. waited: works for which its stream waits. ahead: for a device that is behind.

    connecting: number of communicators that are being made on the device now.
    """

    index: int
    device: str
    waited: list[Operation] = field(default_factory=list)
    blocked: bool = False
    ended: bool = False
    ahead: OnDevice | None = None
    connecting: int = 0


def is_idle(member: Member) -> bool:
    """Whether the member's device waits for no operation."""
    return all(operation.done for operation in member.waited)


def is_stuck(member: Member) -> bool:
    """Whether the member's device waits for others, and its host for the device."""
    host_waits = member.ahead is not None and member.ahead.device.host_waits
    return (host_waits or member.blocked) and not is_idle(member)


def of_one_kind(operations: Iterable[Operation]) -> bool:
    """Whether all members call the same collective."""
    return len({operation.kind for operation in operations}) == 1


def fill(tensor: torch.Tensor, value: float) -> None:
    """Overwrite a tensor as a device does: unseen by autograd, and not as a computation of the calling member."""
    with _disable_current_modes():
        tensor.data.fill_(value if tensor.is_floating_point() else -1)


def move(ready: list[Operation]) -> None:
    """Carry out operations that belong together, in the order of their members."""
    kind = ready[0].kind
    moves: dict[str, Callable[[list[Operation]], None]] = {"allreduce": _sum, "alltoall": _exchange, "allgather": _gather}
    with torch.no_grad():
        if kind in ("send", "recv"):
            ready[1].writes[0].data.copy_(ready[0].reads[0])
        else:
            moves[kind](ready)


def _sum(ready: list[Operation]) -> None:
    total = torch.stack([operation.reads[0] for operation in ready]).sum(dim=0)
    for operation in ready:
        operation.writes[0].data.copy_(total)


def _exchange(ready: list[Operation]) -> None:
    for place, operation in enumerate(ready):
        parts = [other.reads[0].split(list(other.counts))[place] for other in ready]
        operation.writes[0].data.copy_(torch.cat(parts))


def _gather(ready: list[Operation]) -> None:
    whole = torch.cat([operation.reads[0].reshape(-1) for operation in ready])
    for operation in ready:
        operation.writes[0].data.view(-1).copy_(whole)
