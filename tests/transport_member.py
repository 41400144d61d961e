"""The promises of a Transport (docs/protocols.md 1.17), clause by clause: acts of its members, the same on every transport."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from frostline_trainer.generations.formation import COLLECTIVES
from frostline_trainer.generations.groups import CONNECTING
from frostline_trainer.transport import nccl
from frostline_trainer.transport.collectives import Group, connect_store
from frostline_trainer.transport.transport import GlooTransport, Transport
from tests.gpu_check.setting import put_member_environment

LARGE = 2_000_000
"""A number of elements: 8 MB, more than any transport buffers."""


@dataclass
class Place:
    """One member of a clause.

    device: of its tensors. settle: the host waits until its device is done, as the trainer's fence does; it raises RuntimeError
    where the transport was interrupted.
    """

    transport: Transport
    device: torch.device
    settle: Callable[[], None]

    def full(self, value: float, length: int = 1000) -> torch.Tensor:
        return torch.full((length,), value, device=self.device)

    def values(self, tensors: list[torch.Tensor]) -> list[float]:
        """Return the one value of which each tensor consists, computed on the device."""
        same = [bool((tensor == tensor[0]).all()) for tensor in tensors]
        return [float(tensor[0]) if one else float("nan") for tensor, one in zip(tensors, same, strict=True)]


def in_order(place: Place) -> list[float]:
    """Send five messages from member 0 before member 1 takes any."""
    transport, numbers = place.transport, [3.0, 1.0, 4.0, 1.0, 5.0]
    if transport.index > 1:
        return []
    if transport.index == 0:
        transport.wait_all([transport.send(place.full(number), 1) for number in numbers])
        return []
    taken = [place.full(0.0) for _ in numbers]
    transport.wait_all([transport.receive(tensor, 0) for tensor in taken])
    return place.values(taken)


def crossing(place: Place) -> list[float]:
    """Cross as 1F1B does: member 0 sends twice before it takes, member 1 sends between its two receives; large messages."""
    transport = place.transport
    first, second, third = (place.full(value, LARGE) for value in (1.0, 2.0, 3.0))
    if transport.index == 0:
        sent = [transport.send(first, 1), transport.send(second, 1)]
        taken = [place.full(0.0, LARGE)]
        transport.receive(taken[0], 1).wait()
    elif transport.index == 1:
        taken = [place.full(0.0, LARGE), place.full(0.0, LARGE)]
        transport.receive(taken[0], 0).wait()
        sent = [transport.send(third, 0)]
        transport.receive(taken[1], 0).wait()
    else:
        return []
    transport.wait_all(sent)
    return place.values(taken)


def both_first(place: Place) -> list[float]:
    """Send at both ends of every pair of neighbours before either takes, as the two uses of a tied matrix do."""
    transport, size = place.transport, place.transport.size
    neighbours = sorted({(transport.index + 1) % size, (transport.index - 1) % size})
    sent = [transport.send(place.full(float(10 * transport.index + peer), LARGE), peer) for peer in neighbours]
    taken = [place.full(0.0, LARGE) for _ in neighbours]
    transport.wait_all([transport.receive(tensor, peer) for tensor, peer in zip(taken, neighbours, strict=True)])
    transport.wait_all(sent)
    return place.values(taken)


def ahead(place: Place) -> list[float]:
    """Post receives long before anything is sent, and take them in the order of their posts."""
    transport = place.transport
    if transport.index == 1:
        taken = [place.full(0.0, LARGE) for _ in range(3)]
        under_way = [transport.receive(tensor, 0) for tensor in taken]
        time.sleep(0.2)
        sums = []
        for tensor, transfer in zip(taken, under_way, strict=True):
            transfer.wait()
            sums.append(tensor)
        return place.values(sums)
    if transport.index == 0:
        time.sleep(0.3)
        transport.wait_all([transport.send(place.full(float(number), LARGE), 1) for number in range(3)])
    return []


def silence(place: Place) -> dict[str, Any]:
    """Wait without any sender, which is no error. An interruption ends the wait with RuntimeError, and later calls too."""
    transport = place.transport
    if transport.index != 1:
        return {}
    said: dict[str, Any] = {"before": "", "waited": "", "afterwards": ""}
    try:
        transport.check()
    except RuntimeError as error:
        said["before"] = str(error)
    interrupted: list[float] = []
    timer = threading.Timer(0.4, lambda: (interrupted.append(time.monotonic()), transport.interrupt()))
    timer.start()
    try:
        transport.receive(place.full(0.0), 0).wait()
        place.settle()
    except RuntimeError as error:
        said["waited"] = type(error).__name__
        said["in_time"] = bool(interrupted) and time.monotonic() - interrupted[0] < 20.0
    timer.join()
    try:
        transport.receive(place.full(0.0), 0).wait()
    except RuntimeError as error:
        said["afterwards"] = type(error).__name__
    return said


CLAUSES: dict[str, Callable[[Place], Any]] = {
    "in_order": in_order, "crossing": crossing, "both_first": both_first, "ahead": ahead, "silence": silence,
}  # fmt: skip


def _and_wait(reported: Any, store: Any, name: str, size: int) -> Any:
    """Wait until all members have come to the clause's end, since a member that leaves is not a silent one."""
    ended = store.add(f"{name}/ended", 1)
    while ended < size:
        time.sleep(0.01)
        ended = store.add(f"{name}/ended", 0)
    return reported


def run_over_gloo(clause: str, index: int, size: int, port: int, name: str) -> Any:
    """Run a clause's part in a separate process, over gloo."""
    store = connect_store("127.0.0.1", port)
    group = Group(store, name, index, size, "gloo", CONNECTING)
    group.allow(COLLECTIVES)
    place = Place(GlooTransport(group), torch.device("cpu"), lambda: None)
    try:
        return _and_wait(CLAUSES[clause](place), store, name, size)
    finally:
        group.interrupt()
        group.close()


def run_over_nccl(clause: str, index: int, size: int, port: int, gpus: int) -> Any:
    """Run a clause's part in a separate process, over NCCL, on a GPU of its own or a share of one."""
    put_member_environment(index, size, gpus)
    nccl.quiet()
    store = connect_store("127.0.0.1", port)
    transport = nccl.NcclTransport(
        index, size, lambda channel: nccl.make_communicator(store, f"{channel[0]} to {channel[1]}", channel.index(index), 2)
    )

    def settle() -> None:
        mark = torch.cuda.Event()
        mark.record()
        while not mark.query():
            transport.check()
            time.sleep(0.001)
        transport.check()

    nccl.connect(transport.connections, time.monotonic() + 60, lambda: None)
    try:
        return _and_wait(CLAUSES[clause](Place(transport, nccl.OWN_DEVICE, settle)), store, clause, size)
    finally:
        transport.close()
