"""NCCL's rules without a GPU: communicators between threads of one process, in place of torch's process groups of NCCL.

What is simulated, and asked of real NCCL by `tests/integration/test_transport.py` where there is a GPU:

- A communicator runs its operations one after the other, in the order of their calls. A group of more than two members that was
  not connected ahead has a communicator for each pair of members that exchange messages, for both directions together.
- Tags mean nothing. A send ends only with its receive (rendezvous).
- A work that takes longer than its timeout ends the process that waits for it.
- `wait` of a work returns at once: the device waits, not the host. What is to be filled holds NaN until device time.
- A peer that is dead is silence. An abort ends what is under way without an exception and leaves garbage.
- Two members on one device are refused when the communicator is connected, which waits until the devices of its members are idle
  and keeps them from being given anything meanwhile.

The host's thread plays the device's stream: under `Network.member` each computation first waits for the works that the thread has
waited for. With `run_ahead` each member has a device that is behind it instead (`tests.run_ahead`). Where all members wait and
nothing can go on, `Deadlock` is raised in all of them, with what each waits for.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from frostline_trainer.step.device_clock import DeviceClock, HostClock
from tests.run_ahead import OnDevice, RunAhead
from tests.simulated_communicator import SimulatedNccl
from tests.simulated_operations import GARBAGE, Lane, Member, Operation, fill, is_idle, is_stuck, move, of_one_kind


class Deadlock(AssertionError):
    """Every member waits for another one."""


class ProcessEnded(BaseException):
    """The library's watchdog ends the process of whoever waits longer than a work's timeout; nothing catches that."""


class Network:
    """A network of simulated devices.

    finds_deadlocks: raise Deadlock where all members wait; off where a test lets a member wait for a dead peer. device_time:
    whether devices do their work at once, or only after `let_devices_run`.
    """

    def __init__(self, finds_deadlocks: bool = True, device_time: bool = True, run_ahead: bool = False) -> None:
        self.changed = threading.Condition()
        self._members: dict[int, Member] = {}
        self._lanes: dict[tuple[Lane, int], deque[Operation]] = {}
        self._sizes: dict[str, int] = {}
        self._devices: dict[str, dict[int, str]] = {}
        self._met: dict[str, int] = {}
        self._finds_deadlocks, self._device_time, self._run_ahead = finds_deadlocks, device_time, run_ahead
        self._here = threading.local()
        self._closed = False
        self._aborted: set[tuple[str, int]] = set()
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
        if self._run_ahead:
            me.ahead = OnDevice(RunAhead(lambda operation: self._device_waits(me, operation), self._look_again))
        try:
            with me.ahead or _Stream(self, me):
                yield me
        finally:
            if me.ahead is not None:
                me.ahead.device.end()
            with self.changed:
                me.ended = True
                self.changed.notify_all()

    def expect(self, count: int) -> None:
        """Announce `count` members: none of them counts as deadlocked before all have come."""
        for index in range(count):
            self._members[index] = Member(index, f"GPU-{index}")

    @property
    def operations_ahead(self) -> int:
        """Return the number of computations that hosts gave their devices without waiting for them."""
        return sum(member.ahead.device.ahead for member in self._members.values() if member.ahead is not None)

    @property
    def current(self) -> Member | None:
        return getattr(self._here, "member", None)

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """Compute in host memory inside the block, for the calling member."""
        member = self.current
        with member.ahead.on_host() if member is not None and member.ahead is not None else nullcontext():
            yield

    def drain(self) -> None:
        """Let the calling member's host wait for its device, unless it is busy in its own memory."""
        member = self.current
        if member is not None and member.ahead is not None and not member.ahead.suspended:
            member.ahead.device.drain()

    def clock(self) -> DeviceClock:
        """Return the clock of the calling member's device; the host's clock where the host plays the device."""
        member = self.current
        return member.ahead.device if member is not None and member.ahead is not None else HostClock()

    def kill(self, index: int) -> None:
        """Remove the member; its peers are not informed."""
        with self.changed:
            for queue in self._lanes.values():
                if queue and queue[0].owner == index:
                    queue.clear()
            self._members[index].ended = True
            self.changed.notify_all()

    def let_devices_run(self) -> None:
        with self.changed:
            self._device_time = True
            self.changed.notify_all()

    def close(self) -> None:
        """End the thread of the network."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
        self._wire.join()

    def make(self, store: Any, name: str, index: int, size: int, max_ctas: int | None = None) -> SimulatedNccl:
        """Make a communicator: a replacement of `transport.nccl.make_communicator`, called by a member's thread."""
        assert self.current is not None
        with self.changed:
            self._sizes[name] = size
        return SimulatedNccl(self, name, index, size, self.current)

    def connect(self, name: str, index: int, device: str) -> None:
        """Block until all members of the group have come. RuntimeError where two of them have one device."""
        with self.changed:
            members = [member for member in self._members.values() if member.device == device and not member.ended]
            for member in members:
                member.connecting += 1
            devices = self._devices.setdefault(name, {})
            try:
                self.changed.wait_for(lambda: all(map(is_idle, members)) or self._closed)
                devices[index] = device
                self.changed.notify_all()
                self.changed.wait_for(lambda: len(devices) == self._sizes[name] or self._closed)
            finally:
                for member in members:
                    member.connecting -= 1
                self.changed.notify_all()
            if len(set(devices.values())) < len(devices):
                raise RuntimeError(f"ncclInvalidUsage: Duplicate GPU detected in {name}: {devices}")

    def meet(self, name: str, count: int) -> None:
        """Block until `count` members have come here, so that none of them computes meanwhile."""
        with self.changed:
            self._met[name] = self._met.get(name, 0) + 1
            self.changed.notify_all()
            self.changed.wait_for(lambda: self._met[name] >= count or self._closed)

    @property
    def connected(self) -> int:
        """Return the number of communicators whose members have all come."""
        return sum(len(devices) == self._sizes[name] for name, devices in self._devices.items())

    def is_being_connected(self, index: int) -> bool:
        """Whether a communicator is being made on a member's device now."""
        return self._members[index].connecting > 0

    def devices_of(self, name: str) -> set[str]:
        """The devices of the members that have connected in a group."""
        return set(self._devices.get(name, {}).values())

    # ---- operations

    def post(self, operation: Operation, member: Member | None = None) -> Operation:
        """Queue an operation. Raises RuntimeError where the communicator has been aborted: NCCL accepts nothing more for it."""
        with self.changed:
            while member is not None and member.connecting and not self._closed:
                member.blocked = True
                self._raise_deadlock()
                self.changed.notify_all()
                self.changed.wait()
            if member is not None:
                member.blocked = False
            if (operation.lane[0], operation.member) in self._aborted:
                raise RuntimeError(f"ncclInvalidUsage: {operation.lane[0]} was aborted")
            if member is not None and member.ahead is not None:
                operation.started = False
                member.ahead.device.give(lambda: self._start(operation))
            else:
                for tensor in operation.writes:
                    fill(tensor, math.nan)
            self._lanes.setdefault((operation.lane, operation.member), deque()).append(operation)
            self.changed.notify_all()
        return operation

    def _start(self, operation: Operation) -> None:
        """Start an operation: the member's device has reached it."""
        with self.changed:
            if not operation.done:  # by an abort
                for tensor in operation.writes:
                    fill(tensor, math.nan)
            operation.started = True
            self.changed.notify_all()

    def _device_waits(self, member: Member, operation: Operation) -> bool:
        """Let a device that is behind its host wait for an operation. False where its member is gone."""
        with self.changed:
            member.waited.append(operation)
            self.changed.notify_all()
            self.changed.wait_for(lambda: operation.done or member.ended or self._closed or bool(self.deadlock))
            member.waited.remove(operation)
            self._raise_deadlock()
            return operation.done

    def _look_again(self) -> None:
        """Notify all waiters: a host has begun, or ended, to wait for its device."""
        with self.changed:
            self.changed.notify_all()

    def _raise_deadlock(self) -> None:
        if self.deadlock:
            raise Deadlock(self.deadlock)

    def abort(self, name: str, index: int) -> None:
        with self.changed:
            self._aborted.add((name, index))
            for (lane, member), queue in self._lanes.items():
                if lane[0] == name and member == index:
                    for operation in queue:
                        for tensor in operation.writes:
                            fill(tensor, GARBAGE)
                        operation.done = True
                    queue.clear()
            self.changed.notify_all()

    def await_device(self, member: Member) -> None:
        """Block until all operations for which the member's stream waits are done."""
        with self.changed:
            while not all(operation.done for operation in member.waited):
                self._raise_deadlock()
                left = min(one.deadline for one in member.waited if not one.done) - time.monotonic()
                if left <= 0:
                    member.ended = True
                    raise ProcessEnded(f"member {member.index} has waited longer than its works may take: {member.waited[0]}")
                member.blocked = True
                self.changed.notify_all()
                self.changed.wait(left)
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
        """Return the operations at the heads of their communicators that belong together, by member."""
        heads: dict[Lane, dict[int, Operation]] = {}
        for (lane, member), queue in self._lanes.items():
            if queue and queue[0].started:
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
        blocked = waiting and all(map(is_stuck, waiting))
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
