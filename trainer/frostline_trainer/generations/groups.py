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

from frostline_contract.communicators import PAIR_CTAS
from frostline_contract.mesh import Mesh
from frostline_contract.plan import CONTINUE, NCCL, Plan
from frostline_contract.shape import ParallelShape
from frostline_contract.usage import WAY_OF_AXIS, Way
from frostline_trainer.memory import free_bytes
from frostline_trainer.step.exchange import Levels, replicas_a_machine
from frostline_trainer.transport import nccl
from frostline_trainer.transport.collectives import DEFAULT_TIMEOUT, Group, connect_store, machines_of, open_store, store_answers
from frostline_trainer.transport.traffic import Tally, Traffic
from frostline_trainer.transport.transport import GlooTransport, Transport

ATTEMPT = timedelta(seconds=2)
"""Timeout of one attempt to reach the store of another worker, which may be gone."""
RETRY_SECONDS = 0.05
CONNECTING = timedelta(seconds=30)
"""Timeout for connections between participants that have all arrived, so that a participant that dies now ends the forming."""
COLLECTIVES = timedelta(days=1)
"""Timeout of collectives. A slow member must not fail a step: the controller decides who hangs, and interrupts the groups."""


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
        return self.lines.get("tp_columns")

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


class Formation:
    """Meets a plan's other participants and makes the groups; it can be interrupted at any time, also afterwards.

    Args:
        backend: of the groups along axes; world and moving are always gloo.
        timeout: for all to arrive.
        host: the address at which others reach this worker.
        machine: id of this worker's machine, if sums may have two levels; "": they have one.
        traffic: counts the groups' bytes; None: nobody reads the count.
    """

    def __init__(self, plan: Plan, worker_id: str, backend: str = "gloo", timeout: timedelta = DEFAULT_TIMEOUT,
                 host: str = "127.0.0.1", machine: str = "", traffic: Traffic | None = None) -> None:  # fmt: skip
        self.plan, self._backend, self._timeout, self._host, self._machine = plan, backend, timeout, host, machine
        self._traffic = traffic or Traffic()
        self._index = plan.participants.index(worker_id)
        self._name = f"g{plan.generation}"
        self._interrupted = threading.Event()
        self._formed: list[Group | Transport] = []
        self._own_store: Any = None

    def form(self) -> Groups:
        """Make the groups. Raises RuntimeError if not all participants come within `timeout`, or if it is interrupted."""
        try:
            store = self._rendezvous() if len(self.plan.participants) > 1 else None
            groups = self._make_groups(store)
            if store is not None:
                # Behind this barrier all participants have their groups, and nobody reads the keys in the store any more.
                groups.moving.barrier()
                self._delete_keys(store)
            self._check()
            return groups
        except RuntimeError:
            self._drop()
            raise

    def interrupt(self) -> None:
        """End the forming soon, with RuntimeError, and interrupt the groups that are formed. Callable from any thread."""
        self._interrupted.set()
        for group in list(self._formed):
            group.interrupt()

    def release(self) -> None:
        """Drop the references to the groups, which their owner closes."""
        self._formed.clear()

    def _check(self) -> None:
        if self._interrupted.is_set():
            raise Interrupted(f"the groups of {self.plan.generation} are not wanted any more")

    def _drop(self) -> None:
        for group in self._formed:
            group.interrupt()
            group.close()
        self._formed.clear()

    def _rendezvous(self) -> Any:
        """Wait in the store of global rank 0 until all have arrived. It polls, so that it can be interrupted at any time."""
        plan, deadline = self.plan, time.monotonic() + self._timeout.total_seconds()
        store = None
        while store is None:
            self._check()
            try:
                # The client blocks for seconds if there is no store, and for ever if the store is silent.
                if not store_answers(plan.store_host, plan.store_port, ATTEMPT.total_seconds()):
                    raise ConnectionError("it does not answer")
                store = connect_store(plan.store_host, plan.store_port, ATTEMPT)
            except (OSError, RuntimeError) as error:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"the store of {plan.generation} at {plan.store_host} was not reached: {error}") from error
                self._interrupted.wait(RETRY_SECONDS)
        store.set_timeout(CONNECTING)
        members, key = len(plan.participants), f"{self._name}/here"
        arrived = store.add(key, 1)
        while arrived < members:
            self._check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"{arrived} of {members} participants of {plan.generation} came in {self._timeout}")
            time.sleep(0.002 + 0.0002 * members)
            arrived = store.add(key, 0)
        return store

    def _make_groups(self, store: Any) -> Groups:
        plan, shape, index = self.plan, self.plan.placement.shape, self._index
        moving = self._group(store, "moving", index, len(plan.participants), "gloo")
        if index >= shape.world_size:
            return Groups(store, moving, None, {}, None, self._interrupted)
        world = self._group(store, "world", index, shape.world_size, "gloo") if plan.leavers else moving
        if self._backend == NCCL and store is not None:
            return self._make_nccl(store, moving, world)
        lines = self._lines(store, world, list(reversed(shape.degrees)))
        return Groups(store, moving, world, lines, GlooTransport(lines["pp"]), self._interrupted)

    def _lines(self, store: Any, world: Group, axes: list[str]) -> dict[str, Group]:
        """The groups of this member's lines; two along dp if replicas share machines, see `Groups.lines`. Collective."""
        placement, mesh = self.plan.placement, self.plan.placement.shape.mesh
        levels = self._machine and placement.dp_degree > 2 and not placement.is_sharded  # sharded state is exchanged in one level
        machines = machines_of(world, self._machine) if levels else []
        line = mesh.line(self._index, "dp")
        each = replicas_a_machine([machines[member] for member in line], placement.leaf_bounds) if machines else 0
        lines = {axis: self._line(store, mesh, axis) for axis in axes if not (axis == "dp" and each)}
        if each:
            machine, place = divmod(mesh.coordinate_on("dp", self._index), each)
            name, backend, way = f"dp{line[0]}", self._backend, Way.DP_GRADIENTS
            lines["dp_near"] = self._group(store, f"{name} machine {machine}", place, each, backend, way)
            lines["dp_far"] = self._group(store, f"{name} place {place}", machine, len(line) // each, backend, way)
        return lines

    def _line(self, store: Any, mesh: Mesh, axis: str) -> Group:
        """The group of this member's line along an axis, named after the line's first rank."""
        line = mesh.line(self._index, axis)
        way = WAY_OF_AXIS.get(axis, Way.TP)
        return self._group(store, f"{axis}{line[0]}", mesh.coordinate_on(axis, self._index), len(line), self._backend, way)

    def _make_nccl(self, store: Any, moving: Group, world: Group) -> Groups:
        """The groups with NCCL lines and an NCCL transport. NCCL's keys are in a store of this generation's own.

        The communicators are connected here unless the plan continues a generation, which may now run a step on the same device.
        """
        shape, mesh = self.plan.placement.shape, self.plan.placement.shape.mesh
        self._own_store = self._nccl_store(store)
        lines = self._lines(self._own_store, world, [axis for axis in reversed(shape.degrees) if axis != "pp"])
        first, pp_rank = mesh.line(self._index, "pp")[0], shape.pp_rank(self._index)

        def make(channel: nccl.Channel) -> Any:
            name = f"{self._name}/pp{first} {channel[0]} to {channel[1]}"
            return nccl.make_communicator(self._own_store, name, channel.index(pp_rank), 2, PAIR_CTAS)

        transport = nccl.NcclTransport(pp_rank, shape.pp_degree, make, Tally(self._traffic, Way.PP))
        self._formed.append(transport)
        connections = [*transport.connections, *(one for line in lines.values() for one in line.connections)]
        groups = Groups(store, moving, world, lines, transport, self._interrupted, connections)
        if self.plan.start != CONTINUE:
            groups.connect()
        return groups

    def _nccl_store(self, store: Any) -> Any:
        """A store with the generation's lifetime, served by global rank 0."""
        key = f"{self._name}/nccl"
        if self._index == 0:
            own, port = open_store(self._host)
            store.set(key, str(port))
            return own
        return connect_store(self.plan.store_host, int(store.get(key)), CONNECTING)

    def _group(self, store: Any, name: str, index: int, size: int, backend: str, way: Way = Way.OTHER) -> Group:
        self._check()
        group = Group(store, f"{self._name}/{name}", index, size, backend, CONNECTING, self._host, Tally(self._traffic, way))
        group.allow(COLLECTIVES)
        self._formed.append(group)
        return group

    def _delete_keys(self, store: Any) -> None:
        """Delete the keys that this participant has written for the groups, since the store outlives its generations."""
        for group in self._formed:
            for key in group.keys if isinstance(group, Group) else ():
                store.delete_key(key)
        if self._index == 0:
            store.delete_key(f"{self._name}/here")
            if self._own_store is not None:
                store.delete_key(f"{self._name}/nccl")


def lone_groups() -> Groups:
    """The groups of a single worker: no sockets."""
    group = Group(None, "alone", 0, 1)
    return Groups(None, group, group, dict.fromkeys(ParallelShape(1, 1).degrees, group), GlooTransport(group))
