"""The process groups of one generation: two groups of all participants, and one group along each axis of the mesh.

Code that computes asks for a group by axis, `groups.along("dp")`: its members are this rank's line along that axis
(`frostline_contract.mesh`), in the order of their coordinate on it. Messages along the pipeline go over a transport
(`transport.transport`). Two groups lie along no axis:

world   All members, by global rank: votes, evaluation, comparison of copies, gradients for buddies. Always gloo, in host memory:
        it must be interruptible at any time, and its data is small or in host memory already.
moving  The world, followed by the leavers, which still send their state: pieces move in this group at a switch. A generation
        without leavers has one group for both.
"""

import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from frostline_contract.plan import NCCL
from frostline_contract.shape import ParallelShape
from frostline_trainer.memory import free_bytes
from frostline_trainer.step.exchange import Levels
from frostline_trainer.transport import nccl
from frostline_trainer.transport.collectives import Group
from frostline_trainer.transport.transport import GlooTransport, Transport

CONNECTING = timedelta(seconds=30)
"""Timeout for connections between participants that have all arrived, so that a participant that dies now ends the forming."""


class Interrupted(RuntimeError):
    """The groups are not wanted any more."""


@dataclass
class Groups:
    """One participant's process groups.

    Args:
        store: the generation's store, None for a lone worker.
        moving: members and leavers, see above.
        world: the members; None for a leaver.
        lines: by axis the group of this member's line along it; empty for a leaver. With NCCL there is none along the pipeline.
            If replicas share machines, "dp_near" and "dp_far" replace "dp", see `replicas`.
        transport: carries the messages along the pipeline; None for a leaver.
        interrupted: set before any group is interrupted.
        unconnected: NCCL communicators that `connect` has to connect.
        communicators: the number of NCCL communicators.
        communicator_bytes: device memory that was taken while the communicators were connected, including what the previous
            generation allocated meanwhile.
    """

    store: Any
    moving: Group
    world: Group | None
    lines: dict[str, Group]
    transport: Transport | None
    interrupted: threading.Event = field(default_factory=threading.Event)
    unconnected: list[nccl.Connection] = field(default_factory=list)
    communicators: int = 0
    communicator_bytes: int = 0

    def connect(self, continued: "Groups | None" = None) -> None:
        """Connect NCCL's communicators; gloo's groups need nothing. All members call it while no step runs on their devices.

        A generation that continues another one is connected at the switch (docs/adr/0012-programs-and-transport.md), every other
        one when it is formed.

        Args:
            continued: groups of the generation that this one continues: their communicators are freed first, on an idle device.

        Raises:
            RuntimeError: a member did not come within CONNECTING, the library refuses, or the groups are interrupted.
        """
        if continued is not None:
            continued.leave_device()
        connections, self.unconnected = self.unconnected, []
        if connections:
            free = free_bytes(nccl.OWN_DEVICE)
            nccl.connect(connections, time.monotonic() + CONNECTING.total_seconds(), self._wanted)
            self.communicators, self.communicator_bytes = len(connections), max(0, free - free_bytes(nccl.OWN_DEVICE))

    def leave_device(self) -> None:
        """Free NCCL's communicators, after their last step has ended on this member's device. gloo's groups stay."""
        for group in self.all():
            if isinstance(group, nccl.NcclTransport) or (isinstance(group, Group) and group.backend == NCCL):
                group.close()

    def _wanted(self) -> None:
        if self.interrupted.is_set():
            raise Interrupted("the groups were interrupted while they were being connected")

    def along(self, axis: str) -> Group:
        """The group of this member's line along an axis of the mesh: the members that differ from it on this axis only.

        Raises KeyError for an axis that the mesh does not name, and for a leaver.
        """
        if axis not in self.lines:
            known = ", ".join(self.lines) or "no axis"
            raise KeyError(f"there is no group along {axis!r}; this participant has groups along {known}")
        return self.lines[axis]

    @property
    def replicas(self) -> Group | Levels:
        """This member's line along dp, over which its gradients are reduced: one group, or one for each level."""
        return self.lines["dp"] if "dp" in self.lines else Levels(self.lines["dp_near"], self.lines["dp_far"])

    @property
    def tensor(self) -> Group | None:
        """The tensor-parallel group, which shares this member's stages tile by tile; None if the member computes them alone."""
        return self.lines.get("tp") or self.columns or self.levels

    @property
    def columns(self) -> Group | None:
        """The members of the tensor-parallel group with the same hidden tiles; None if this member has all inner tiles."""
        return self.lines.get("tp_columns")

    @property
    def levels(self) -> Group | None:
        """The members of the tensor-parallel group with the same inner tiles; None if this member has all hidden tiles."""
        return self.lines.get("tp_depth")

    def all(self) -> list[Group | Transport]:
        """All groups, each once, and the transport."""
        groups = [one for one in (self.transport, *self.lines.values(), self.world, self.moving) if one is not None]
        return list({id(group): group for group in groups}.values())

    def interrupt(self) -> None:
        """Interrupt all groups: calls that block in them end with RuntimeError. Callable from any thread."""
        self.interrupted.set()
        for group in self.all():
            group.interrupt()

    def check(self) -> None:
        """Raise RuntimeError if the groups were interrupted or a communicator has failed: its output is undefined then."""
        if self.interrupted.is_set():
            raise Interrupted("the groups were interrupted while the device was computing")
        for group in self.all():
            group.check()

    @property
    def wait_on_device(self) -> bool:
        """Whether the device itself, not the host, waits for other members (with NCCL)."""
        along_pipeline = isinstance(self.transport, nccl.NcclTransport) and self.transport.size > 1
        return along_pipeline or any(group.backend == NCCL and group.size > 1 for group in self.lines.values())

    def close(self) -> None:
        """Close the sockets and communicators of every group, and release the store. No thread may block in a group."""
        for group in self.all():
            group.close()
        self.store = None


def lone_groups() -> Groups:
    """The groups of a single worker: no sockets."""
    group = Group(None, "alone", 0, 1)
    return Groups(None, group, group, dict.fromkeys(ParallelShape(1, 1).degrees, group), GlooTransport(group))
