"""Forms the process groups of a generation: meets the plan's other participants in a store, and makes the groups.

A participant may die or be told to stop at any moment of it, so every wait ends soon after an interruption.
"""

import threading
import time
from datetime import timedelta
from typing import Any

from frostline_contract.communicators import PAIR_CTAS
from frostline_contract.mesh import Mesh
from frostline_contract.plan import CONTINUE, NCCL, Plan
from frostline_contract.shape import ParallelShape
from frostline_contract.usage import WAY_OF_AXIS, Way
from frostline_trainer.generations.groups import CONNECTING, Groups, Interrupted
from frostline_trainer.step.exchange import replicas_a_machine
from frostline_trainer.transport import nccl
from frostline_trainer.transport.collectives import DEFAULT_TIMEOUT, Group, connect_store, machines_of, open_store, store_answers
from frostline_trainer.transport.traffic import Tally, Traffic
from frostline_trainer.transport.transport import GlooTransport, Transport

ATTEMPT = timedelta(seconds=2)
"""Timeout of one attempt to reach the store of another worker, which may be gone."""
RETRY_SECONDS = 0.05
COLLECTIVES = timedelta(days=1)
"""Timeout of collectives. A slow member must not fail a step: the controller decides who hangs, and interrupts the groups."""


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
        """Make the groups. Raises RuntimeError if not all participants come within `timeout`, or if it is interrupted; OSError if
        the system refuses what they need, for example files."""
        try:
            store = self._rendezvous() if len(self.plan.participants) > 1 else None
            groups = self._make_groups(store)
            if store is not None:
                # Behind this barrier all participants have their groups, and nobody reads the keys in the store any more.
                groups.moving.barrier()
                self._delete_keys(store)
            self._check()
            return groups
        except (RuntimeError, OSError):
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
        lines = self._lines(store, world, axes_of(shape))
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
        lines = self._lines(self._own_store, world, [axis for axis in axes_of(shape) if axis != "pp"])
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


def axes_of(shape: ParallelShape) -> list[str]:
    """The axes along which a member has groups, innermost first: with columns and levels also the whole tensor-parallel group."""
    return [*reversed(shape.degrees), *(["tp"] if shape.tp_columns > 1 and shape.tp_depth > 1 else [])]
