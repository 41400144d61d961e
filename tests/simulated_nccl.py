"""NCCL's rules without a GPU: communicators between threads of one process, in place of torch's process groups of NCCL.

What is simulated, and asked of real NCCL by `tests/integration/test_transport.py` where there is a GPU:

- A communicator runs its operations one after the other, in the order of their calls. A group of more than two members that was
  not connected ahead has a communicator for each pair of members that exchange messages, for both directions together.
- Tags mean nothing. A send ends only with its receive (rendezvous).
- `wait` of a work returns at once: the device waits, not the host. What is to be filled holds NaN until device time.
- A peer that is dead is silence. An abort ends what is under way without an exception and leaves garbage.
- Two members on one device are refused when the communicator is connected.

The host's thread plays the device's stream: under `Network.member` each computation first waits for the works that the thread has
waited for. Where all members wait and nothing can go on, `Deadlock` is raised in all of them, with what each waits for.
"""

import math
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.simulated_operations import GARBAGE, Lane, Operation, fill, move, of_one_kind


class Deadlock(AssertionError):
    """Every member waits for another one."""


@dataclass
class Member:
    """A thread that plays one rank and its device. waited: works that its stream waits for."""

    index: int
    device: str
    waited: list[Operation] = field(default_factory=list)
    blocked: bool = False
    ended: bool = False


class Network:
    """All members and communicators of one simulated job.

    finds_deadlocks: raise Deadlock where all members wait; off where a test lets somebody wait for a dead peer.
    device_time: whether devices do what they are given at once, or only after `let_devices_run`.
    """

    def __init__(self, finds_deadlocks: bool = True, device_time: bool = True) -> None:
        self.changed = threading.Condition()
        self._members: dict[int, Member] = {}
        self._lanes: dict[tuple[Lane, int], deque[Operation]] = {}
        self._sizes: dict[str, int] = {}
        self._devices: dict[str, dict[int, str]] = {}
        self._finds_deadlocks, self._device_time = finds_deadlocks, device_time
        self._here = threading.local()
        self._closed = False
        self.deadlock = ""
        self.operations = 0
        self._wire = threading.Thread(target=self._run, name="wire", daemon=True)
        self._wire.start()

    # ---- members

    @contextmanager
    def member(self, index: int, device: str = "") -> Iterator[Member]:
        """The calling thread is this rank, and its computations run on this rank's device, until the end of the block."""
        me = self._members[index] = Member(index, device or f"GPU-{index}")
        self._here.member = me
        try:
            with _Stream(self, me):
                yield me
        finally:
            with self.changed:
                me.ended = True
                self.changed.notify_all()

    def expect(self, count: int) -> None:
        """So many members will come: none of them has deadlocked before all are there."""
        for index in range(count):
            self._members[index] = Member(index, f"GPU-{index}")

    @property
    def current(self) -> Member | None:
        return getattr(self._here, "member", None)

    def kill(self, index: int) -> None:
        """The member is gone; its peers hear nothing of it."""
        with self.changed:
            for queue in self._lanes.values():
                if queue and queue[0].owner == index:
                    queue.clear()
            self._members[index].ended = True

    def let_devices_run(self) -> None:
        with self.changed:
            self._device_time = True
            self.changed.notify_all()

    def close(self) -> None:
        """End the wire."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        self._wire.join()

    def make(self, store: Any, name: str, index: int, size: int, max_ctas: int | None = None) -> "SimulatedNccl":
        """In place of `comm.nccl.make_communicator`, called by a member's thread."""
        assert self.current is not None
        with self.changed:
            self._sizes[name] = size
        return SimulatedNccl(self, name, index, size, self.current)

    def connect(self, name: str, index: int, device: str) -> None:
        """Blocks until all members of the group have come. RuntimeError where two of them have one device."""
        with self.changed:
            devices = self._devices.setdefault(name, {})
            devices[index] = device
            self.changed.notify_all()
            self.changed.wait_for(lambda: len(devices) == self._sizes[name] or self._closed)
            if len(set(devices.values())) < len(devices):
                raise RuntimeError(f"ncclInvalidUsage: Duplicate GPU detected in {name}: {devices}")

    def devices_of(self, name: str) -> set[str]:
        """The devices of the members that have connected in a group."""
        return set(self._devices.get(name, {}).values())

    # ---- operations

    def post(self, operation: Operation) -> Operation:
        with self.changed:
            for tensor in operation.writes:
                fill(tensor, math.nan)
            self._lanes.setdefault((operation.lane, operation.member), deque()).append(operation)
            self.changed.notify_all()
        return operation

    def abort(self, name: str, index: int) -> None:
        with self.changed:
            for (lane, member), queue in self._lanes.items():
                if lane[0] == name and member == index:
                    for operation in queue:
                        for tensor in operation.writes:
                            fill(tensor, GARBAGE)
                        operation.done = True
                    queue.clear()
            self.changed.notify_all()

    def await_device(self, member: Member) -> None:
        """The member's stream goes on when all that it waits for is done."""
        with self.changed:
            while not all(operation.done for operation in member.waited):
                if self.deadlock:
                    raise Deadlock(self.deadlock)
                member.blocked = True
                self.changed.notify_all()
                self.changed.wait()
            member.blocked = False
            member.waited.clear()

    def _run(self) -> None:
        with self.changed:
            while not self._closed:
                ready = self._ready() if self._device_time else None
                if ready is None:
                    self._find_deadlock()
                    self.changed.wait()
                    continue
                move(ready)
                for operation in ready:
                    operation.done = True
                    self._lanes[operation.lane, operation.member].popleft()
                self.operations += 1
                self.changed.notify_all()

    def _ready(self) -> list[Operation] | None:
        """Operations at the heads of their communicators that belong together, by member."""
        heads: dict[Lane, dict[int, Operation]] = {}
        for (lane, member), queue in self._lanes.items():
            if queue:
                heads.setdefault(lane, {})[member] = queue[0]
        for lane, by_member in heads.items():
            for member, head in by_member.items():
                if head.kind == "send":
                    other = by_member.get(head.peer)
                    if other is not None and other.kind == "recv" and other.peer == member:
                        return [head, other]
                elif head.kind != "recv" and len(by_member) == self._sizes[lane[0]] and of_one_kind(by_member.values()):
                    return [by_member[index] for index in sorted(by_member)]
        return None

    def _find_deadlock(self) -> None:
        waiting = [member for member in self._members.values() if not member.ended]
        blocked = waiting and all(member.blocked and not all(one.done for one in member.waited) for member in waiting)
        if self._finds_deadlocks and self._device_time and blocked and not self.deadlock:
            heads = {
                member.index: [str(queue[0]) for queue in self._lanes.values() if queue and queue[0].owner == member.index]
                for member in waiting
            }
            self.deadlock = f"every member waits; the heads of their communicators: {heads}"
            self.changed.notify_all()


class _Stream(TorchDispatchMode):
    """A member's computations, each after what the member's stream waits for."""

    def __init__(self, network: Network, member: Member) -> None:
        super().__init__()
        self._network, self._member = network, member

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._member.waited:
            self._network.await_device(self._member)
        return func(*args, **(kwargs or {}))


@dataclass
class SimulatedWork:
    network: Network
    operation: Operation

    def wait(self, *timeout: Any) -> bool:
        """The stream of the calling thread waits; the host does not."""
        member = self.network.current
        if member is not None and not self.operation.done:
            member.waited.append(self.operation)
        return True

    def is_completed(self) -> bool:
        return self.operation.done


class SimulatedNccl:
    """What the trainer uses of ProcessGroupNCCL."""

    def __init__(self, network: Network, name: str, index: int, size: int, member: Member) -> None:
        self._network, self._name, self._index, self._size = network, name, index, size
        self._device = member.device
        self._connected = False
        self.options = SimpleNamespace(group_name=name)

    def eager_connect_single_device(self, device: torch.device) -> None:
        self._network.connect(self._name, self._index, self._device)
        self._connected = True

    def get_error(self) -> Any:
        return SimpleNamespace(name="SUCCESS")

    def abort(self) -> None:
        self._network.abort(self._name, self._index)

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> SimulatedWork:
        return self._post("send", to, tensors, [])

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> SimulatedWork:
        return self._post("recv", source, [], tensors)

    def allreduce(self, tensors: list[torch.Tensor]) -> SimulatedWork:
        return self._post("allreduce", -1, [tensors[0].clone()], tensors)

    def alltoall_base(
        self, output: torch.Tensor, source: torch.Tensor, output_counts: list[int], counts: list[int]
    ) -> SimulatedWork:
        return self._post("alltoall", -1, [source], [output], tuple(counts))

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor) -> SimulatedWork:
        return self._post("allgather", -1, [own], [output])

    def _post(
        self, kind: str, peer: int, reads: list[torch.Tensor], writes: list[torch.Tensor], counts: tuple[int, ...] = ()
    ) -> SimulatedWork:
        member = self._network.current
        if member is not None and member.waited:
            self._network.await_device(member)  # the communicator's stream begins after what the device has been given
        whole = self._connected or kind not in ("send", "recv")
        lane = (self._name, "all" if whole else (min(self._index, peer), max(self._index, peer)))
        owner = member.index if member is not None else -1
        operation = Operation(kind, owner, self._index, lane, peer, reads, writes, counts)
        return SimulatedWork(self._network, self._network.post(operation))
