"""NCCL beside the rest of a process: listeners, connections and aborts at any moment."""

import socket
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from frostline_contract.plan import NCCL, Plan
from frostline_trainer.generations.formation import Formation
from frostline_trainer.generations.groups import Groups, Interrupted
from frostline_trainer.transport import collectives, nccl
from frostline_trainer.transport.collectives import Group, open_store
from tests.hand_made_plans import Layout, Segment, make_plan
from tests.simulated_members import in_threads, over
from tests.simulated_nccl import Network


class Listeners:
    """A maker of gloo's devices; the first `times` times, the process opens another listener beside the device's."""

    def __init__(self, times: int) -> None:
        self.times, self.opened = times, []
        self._make = dist.ProcessGroupGloo.create_device

    def create_device(self, hostname: str) -> Any:
        if len(self.opened) < self.times:
            self.opened.append(socket.create_server(("127.0.0.1", 0)))
        return self._make(hostname=hostname)


def test_gloos_listener_is_found_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners = Listeners(3)
    monkeypatch.setattr(dist.ProcessGroupGloo, "create_device", listeners.create_device)
    _, address = collectives._gloo_device("127.0.0.1")
    assert len(listeners.opened) == 3
    assert address in collectives.gloo.listening() - {one.getsockname() for one in listeners.opened}
    monkeypatch.setattr(dist.ProcessGroupGloo, "create_device", Listeners(10**6).create_device)
    with pytest.raises(RuntimeError, match="20 times in a row this process opened other listeners beside gloo's"):
        collectives._gloo_device("127.0.0.1")


def plans(start_step: int = 2) -> tuple[Plan, Plan]:
    """Return the plan of a generation of two stages, and of one that continues it."""
    ports = [open_store_port()] * 2
    first = make_plan(Segment(Layout(2, 1), start_step), None, ports, backend=NCCL)
    return first, make_plan(Segment(Layout(1, 2), start_step + 2), first, ports, backend=NCCL)


_stores: list[Any] = []


def open_store_port() -> int:
    if not _stores:
        _stores.append(open_store())
    return _stores[0][1]


def test_a_generation_that_continues_another_is_connected_at_the_switch_and_not_before() -> None:
    """During a step a connection may wait for the device, and the device for a message that the peer cannot send."""
    network, (first, second) = Network(), plans()
    network.expect(2)
    formed = threading.Barrier(2)
    seen: dict[int, list[Any]] = {}

    def member(index: int) -> None:
        with network.member(index):
            before = Formation(first, f"w{index}", NCCL, timedelta(seconds=60)).form()
            after = Formation(second, f"w{index}", NCCL, timedelta(seconds=60)).form()
            formed.wait(60)
            seen[index] = [before.unconnected == [], len(after.unconnected), network.connected]
            formed.wait(60)
            after.connect(before)
            with pytest.raises(RuntimeError, match="interrupted"):
                before.along("dp").check() if before.along("dp").size > 1 else before.transport.check()  # type: ignore[union-attr]
            seen[index] += [after.unconnected == [], after.check()]
            formed.wait(60)
            seen[index].append(network.connected)
            after.close()
            before.close()

    with over(network):
        in_threads(member, 2)
    network.close()
    for reported in seen.values():
        first_alone, waiting, early, connected, sound, late = reported
        assert first_alone and waiting > 0 and connected and sound is None
        assert early < late, "what continues was connected before the switch"


DUMP = "exception_dump"
"""The library's watchdog announces by this key, beneath all prefixes, that all who use a store are to end."""


def test_what_the_library_announces_ends_with_its_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's one store outlives generations: an old generation's key in it would end processes that come later."""
    network, (first, second) = Network(), plans()
    network.expect(2)
    stores, make = dict[str, Any](), network.make

    def noted(store: Any, name: str, *others: Any) -> Any:
        stores[name.split("/")[0]] = store
        return make(store, name, *others)

    monkeypatch.setattr(network, "make", noted)
    met = threading.Barrier(2)

    def member(index: int) -> list[bool]:
        with network.member(index):
            formations = [Formation(plan, f"w{index}", NCCL, timedelta(seconds=60)) for plan in (first, second)]
            formed = [formation.form() for formation in formations]
            met.wait(60)
            if index == 0:
                stores[f"g{first.generation}"].set(DUMP, "1")
            met.wait(60)
            received = [bool(store.check([DUMP])) for store in (*stores.values(), *(groups.store for groups in formed))]
            met.wait(60)
            for groups in formed:
                groups.close()
            for formation in formations:  # they hold the stores, as those of a worker do
                formation.release()
            return received

    with over(network):
        received = in_threads(member, 2)
    network.close()
    assert list(stores) == [f"g{first.generation}", f"g{second.generation}"]
    assert received == [[True, False, False, False]] * 2


def test_connecting_can_be_interrupted_and_leaves_nothing_on_the_device() -> None:
    """The peer connects late to a communicator that nobody wants: it is aborted, and its first message is not begun."""
    network = Network()
    network.expect(2)
    aborted: list[str] = []
    given_up = threading.Event()
    groups = Groups(None, None, None, {}, None)  # type: ignore[arg-type]

    def member(index: int) -> str:
        with network.member(index):
            made = network.make(None, "late", index, 2)
            if index == 1:
                assert given_up.wait(60)
                made.eager_connect_single_device(torch.device("cpu"))
                return ""
            made.abort = lambda: aborted.append("late")  # type: ignore[method-assign]
            groups.unconnected = [(made, lambda tensor: pytest.fail("a message was begun"))]
            threading.Timer(0.2, groups.interrupted.set).start()
            with pytest.raises(Interrupted, match="while they were being connected"):
                groups.connect()
            given_up.set()
            return "interrupted"

    with over(network):
        assert in_threads(member, 2) == ["interrupted", ""]
        deadline = time.monotonic() + 20
        while not aborted and time.monotonic() < deadline:
            time.sleep(0.01)
    network.close()
    assert aborted == ["late"]


class Recording:
    """A communicator that records its group's error at the moment when the abort began."""

    def __init__(self) -> None:
        self.group: Group | None = None
        self.said: list[str] = []

    def abort(self) -> None:
        assert self.group is not None
        try:
            self.group.check()
        except RuntimeError as error:
            self.said.append(str(error))
        else:
            self.said.append("")

    def get_error(self) -> None:
        return None


def test_a_group_is_interrupted_before_its_abort_ends_any_work_and_aborts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort ends work without an error: a reader that saw the end first would take any bytes for a result."""
    made = Recording()
    monkeypatch.setattr(nccl, "make_communicator", lambda *arguments: made)
    store, _ = open_store()
    made.group = Group(store, "g", 0, 2, "nccl")
    threads = [threading.Thread(target=made.group.interrupt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    made.group.close()
    assert made.said == ["the group was interrupted: what was under way may hold anything"]


def test_a_transport_and_its_groups_say_the_same_of_an_interruption() -> None:
    """The fence calls `Groups.check`, a wait calls `Transport.check`: both raise, or neither does."""
    network = Network()
    network.expect(2)

    def member(index: int) -> list[str]:
        with network.member(index):
            transport = nccl.NcclTransport(index, 2, lambda channel: network.make(None, str(channel), channel.index(index), 2))
            nccl.connect(transport.connections, time.monotonic() + 60, lambda: None)
            groups = Groups(None, Group(None, "alone", 0, 1), None, {}, transport)
            before = [raised(groups.check), raised(transport.check)]
            if index == 0:
                transport.interrupt()
            else:
                groups.interrupt()
            return [*before, raised(groups.check), raised(transport.check)]

    with over(network):
        reported = in_threads(member, 2)
    network.close()
    assert [one[:2] for one in reported] == [["", ""]] * 2
    assert all(said for one in reported for said in one[2:]), reported


def raised(check: Any) -> str:
    try:
        check()
    except RuntimeError as error:
        return str(error)
    return ""
