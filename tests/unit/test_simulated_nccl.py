"""The simulated NCCL keeps the rules for which it stands in: what a program gets wrong on NCCL goes wrong here."""

import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch

from frostline_trainer.transport import nccl
from tests.simulated_members import in_threads
from tests.simulated_nccl import GARBAGE, Deadlock, Network, ProcessEnded, SimulatedNccl


@pytest.fixture
def networks() -> Iterator[Callable[..., Network]]:
    made: list[Network] = []

    def make(**options: Any) -> Network:
        made.append(Network(**options))
        return made[-1]

    yield make
    for network in made:
        network.close()


def meet(network: Network, act: Callable[[int, SimulatedNccl], Any], count: int = 2, devices: str = "") -> list[Any]:
    """act(index, communicator) on each of the members of one group that nobody connects ahead."""
    network.expect(count)

    def run(index: int) -> Any:
        with network.member(index, devices):
            return act(index, network.make(None, "group", index, count))

    return in_threads(run, count, seconds=20)


def test_wait_returns_before_the_message_and_the_device_waits_for_it(networks: Callable[..., Network]) -> None:
    network = networks(device_time=False)

    def act(index: int, group: SimulatedNccl) -> Any:
        tensor = torch.full((4,), 7.0) if index == 0 else torch.zeros(4)
        on_host = tensor.numpy()
        work = group.send([tensor], 1, 3) if index == 0 else group.recv([tensor], 0, 9)
        work.wait()
        done, seen = work.is_completed(), on_host.copy()
        if index == 1:
            network.let_devices_run()
        return done, seen, (tensor * 2).tolist()

    (_, _, sent), (done, seen, computed) = meet(network, act)
    assert not done
    assert (seen != seen).all(), "the host saw contents before device time"
    assert computed == sent == [14.0] * 4, "tags differ, and NCCL ignores them"


def test_what_is_not_waited_for_is_not_there(networks: Callable[..., Network]) -> None:
    network = networks(device_time=False)

    def act(index: int, group: SimulatedNccl) -> list[float]:
        tensor = torch.ones(1)
        work = group.send([tensor], 1, 0) if index == 0 else group.recv([tensor], 0, 0)
        early = float(tensor * 1)
        if index == 1:
            network.let_devices_run()
        work.wait()
        return [early, float(tensor * 1)]

    early, late = meet(network, act)[1]
    assert early != early
    assert late == 1.0


def test_messages_of_both_directions_on_one_communicator_wait_for_each_other(networks: Callable[..., Network]) -> None:
    def act(index: int, group: SimulatedNccl) -> float:
        sent, received = torch.ones(1), torch.zeros(1)
        works = [group.send([sent], 1 - index, 0), group.recv([received], 1 - index, 0)]
        for work in works:
            work.wait()
        return float(received)

    with pytest.raises(Deadlock, match="every member waits"):
        meet(networks(), act)


def test_order_alone_matches(networks: Callable[..., Network]) -> None:
    def act(index: int, group: SimulatedNccl) -> list[float]:
        tensors = [torch.full((1,), float(number)) for number in range(3)]
        for tag in (0, 1, 2):
            work = group.send([tensors[tag]], 1, tag) if index == 0 else group.recv([tensors[2 - tag]], 0, 2 - tag)
            work.wait()
        return [float(tensor) for tensor in tensors]

    assert meet(networks(), act)[1] == [2.0, 1.0, 0.0]


def test_a_dead_peer_is_silence_and_an_abort_leaves_garbage_without_an_error(networks: Callable[..., Network]) -> None:
    network = networks(finds_deadlocks=False)

    def act(index: int, group: SimulatedNccl) -> Any:
        if index == 0:
            network.kill(0)
            return None
        tensor = torch.zeros(2)
        work = group.recv([tensor], 0, 0)
        assert work.wait()
        aborted: list[float] = []
        timer = threading.Timer(0.3, lambda: (aborted.append(time.monotonic()), group.abort()))
        timer.start()
        values = (tensor * 1).tolist()
        timer.join()
        return values, work.wait(), group.get_error().name, bool(aborted)

    assert meet(network, act)[1] == ([pytest.approx(GARBAGE)] * 2, True, "SUCCESS", True)


def test_collectives_have_their_contents_at_device_time(networks: Callable[..., Network]) -> None:
    def act(index: int, group: SimulatedNccl) -> Any:
        total, parts, whole = torch.full((2,), float(index + 1)), torch.zeros(3), torch.zeros(6)
        works = [
            group.allreduce([total]),
            group.alltoall_base(parts, torch.arange(3.0) + 10 * index, [1, 1, 1], [1, 1, 1]),
            group._allgather_base(whole, torch.full((2,), float(index))),
        ]
        for work in works:
            work.wait()
        return [(tensor * 1).tolist() for tensor in (total, parts, whole)]

    for index, (total, parts, whole) in enumerate(meet(networks(), act, 3)):
        assert total == [6.0, 6.0]
        assert parts == [index, 10.0 + index, 20.0 + index]
        assert whole == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]


def test_a_connection_waits_for_an_idle_device_and_holds_it_meanwhile(networks: Callable[..., Network]) -> None:
    """Why a generation is not connected beside another one's step: each device waits for a message that the other cannot send."""

    def act(index: int, _: SimulatedNccl) -> float:
        network, threads = made[0], []
        there, back = (network.make(None, name, index, 2) for name in ("there", "back"))
        received, sent = torch.zeros(1), torch.ones(1)
        for one in (there, back):
            one.eager_connect_single_device(torch.device("cpu"))
        (back if index == 0 else there).recv([received], 1 - index, 0).wait()  # the device is busy until the other one sends
        further = network.make(None, "further", index, 2)
        threads.append(threading.Thread(target=further.eager_connect_single_device, args=(torch.device("cpu"),), daemon=True))
        threads[0].start()
        while not network.is_being_connected(index):
            time.sleep(0.001)
        (there if index == 0 else back).send([sent], 1 - index, 0).wait()
        return float(received)

    made = [networks()]
    with pytest.raises(Deadlock, match="every member waits"):
        meet(made[0], act)


def test_a_device_that_is_behind_does_nothing_before_its_host_waits(networks: Callable[..., Network]) -> None:
    network = networks(run_ahead=True)

    def act(index: int, group: SimulatedNccl) -> Any:
        for _ in range(2):  # the first time an operation is done at once
            tensor = torch.ones(4) * (3.0 if index == 0 else 1.0)
            doubled = tensor * 2.0
        (group.send([doubled], 1, 0) if index == 0 else group.recv([doubled], 0, 0)).wait()
        after = doubled + 1.0
        seen = bool(torch.utils._python_dispatch._get_current_dispatch_mode() is not None)
        mark, member = network.clock().mark(), network.current
        assert member is not None and member.ahead is not None
        given, done = member.ahead.device.ahead, member.ahead.device.progress
        deadline = time.monotonic() + 20.0
        while not mark.query() and time.monotonic() < deadline:
            time.sleep(0.001)
        with network.on_host():
            return seen, given > 0, done, after.tolist()

    for seen, ahead, done, values in meet(network, act):
        assert seen and ahead
        assert done[0] < done[1], "the device had done what nobody had waited for"
        assert values == [7.0] * 4


def test_a_works_timeout_ends_the_process_and_the_trainers_is_long_enough(
    networks: Callable[..., Network], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = threading.Event()

    def act(index: int, group: SimulatedNccl) -> float:
        tensor = torch.full((1,), 1.0 - index)
        if index == 0:
            assert waits.wait(60.0)
            time.sleep(1.0)
            group.send([tensor], 1, 0).wait()
        else:
            waits.set()
            group.recv([tensor], 0, 0).wait()
        return float(tensor * 1)

    assert meet(networks(), act) == [1.0, 1.0]
    waits.clear()
    monkeypatch.setattr(nccl, "WORK_SECONDS", timedelta(seconds=0.2))
    with pytest.raises(ProcessEnded, match="member 1 has waited longer than its works may take: recv with 0"):
        meet(networks(finds_deadlocks=False), act)


def test_two_members_on_one_device_are_refused(networks: Callable[..., Network]) -> None:
    with pytest.raises(RuntimeError, match="Duplicate GPU detected"):
        meet(networks(), lambda index, group: group.eager_connect_single_device(torch.device("cuda")), devices="GPU-a")
    network = networks()
    meet(network, lambda index, group: group.eager_connect_single_device(torch.device("cuda")))
    assert network.devices_of("group") == {"GPU-0", "GPU-1"}
