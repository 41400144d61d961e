"""One contract for every transport: the pipeline's assumptions hold over gloo, over NCCL's rules, and over NCCL itself where
there are GPUs (docs/protocols.md 1.17)."""

import time
from typing import Any

import pytest
import torch

from frostline_contract.communicators import PAIR_CTAS
from frostline_trainer.transport import nccl
from frostline_trainer.transport.collectives import open_store
from tests.simulated_members import in_threads
from tests.simulated_nccl import Network
from tests.transport_member import CLAUSES, Place
from tests.warm_workers import Call, WarmWorkers

SIZE = 3


@pytest.fixture(autouse=True)
def own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let simulated NCCL move tensors of the host."""
    monkeypatch.setattr(nccl, "OWN_DEVICE", torch.device("cpu"))


_stores: list[Any] = []
_names = (f"contract{number}" for number in range(10**6))


def over_gloo(clause: str, workers: WarmWorkers) -> list[Any]:
    if not _stores:
        _stores.append(open_store())
    shared = {"clause": clause, "size": SIZE, "port": _stores[0][1], "name": next(_names)}
    return workers.call([Call("tests.transport_member:run_over_gloo", shared | {"index": index}) for index in range(SIZE)])


def over_simulated_nccl(clause: str, workers: WarmWorkers) -> list[Any]:
    network = Network(finds_deadlocks=clause != "silence")
    network.expect(SIZE)

    def run(index: int) -> Any:
        with network.member(index) as member:

            def make(channel: nccl.Channel) -> Any:
                return network.make(None, f"{channel[0]} to {channel[1]}", channel.index(index), 2)

            def settle() -> None:
                """Wait as the trainer's fence does: poll, and check the transport before any result is read."""
                while not all(operation.done for operation in member.waited):
                    transport.check()
                    time.sleep(0.001)
                transport.check()

            transport = nccl.NcclTransport(index, SIZE, make)
            nccl.connect(transport.connections, time.monotonic() + 60, lambda: None)
            return CLAUSES[clause](Place(transport, torch.device("cpu"), settle))

    try:
        return in_threads(run, SIZE)
    finally:
        network.close()


def over_nccl(clause: str, workers: WarmWorkers) -> list[Any]:
    if not torch.cuda.is_available():
        pytest.skip("no GPU is here: real NCCL was not asked")
    _store, port = open_store()
    shared = {"clause": clause, "size": SIZE, "port": port, "gpus": torch.cuda.device_count()}
    return workers.call([Call("tests.transport_member:run_over_nccl", shared | {"index": index}) for index in range(SIZE)])


TRANSPORTS = {"gloo": over_gloo, "simulated_nccl": over_simulated_nccl, "nccl": over_nccl}
EXPECTED = {
    "in_order": [[], [3.0, 1.0, 4.0, 1.0, 5.0], []],
    "crossing": [[3.0], [1.0, 2.0], []],
    "both_first": [[10.0, 20.0], [1.0, 21.0], [2.0, 12.0]],
    "ahead": [[], [0.0, 1.0, 2.0], []],
    "silence": [{}, {"before": "", "waited": "RuntimeError", "in_time": True, "afterwards": "RuntimeError"}, {}],
}
"""Each member's final answer, by clause."""


@pytest.mark.parametrize("clause", CLAUSES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_transport_keeps_the_contract(transport: str, clause: str, warm_workers: WarmWorkers) -> None:
    assert TRANSPORTS[transport](clause, warm_workers) == EXPECTED[clause]


class Stubborn:
    """A communicator whose abort does not end."""

    def abort(self) -> None:
        time.sleep(60)


def test_an_abort_that_does_not_end_ends_the_process() -> None:
    said: list[int] = []
    nccl.abort_all([Stubborn()], seconds=0.1, give_up=said.append).join()  # type: ignore[list-item]
    assert said == [nccl.NOT_ENDED]


def test_a_peer_that_does_not_come_ends_the_connecting_at_its_deadline_and_an_interruption_before() -> None:
    network = Network()
    network.expect(2)

    def wait(seconds: float, check: Any) -> str:
        with network.member(0):
            made = network.make(None, f"lonely{seconds}", 0, 2)
            with pytest.raises(RuntimeError) as refused:
                nccl.connect([(made, lambda tensor: made.allreduce([tensor]))], time.monotonic() + seconds, check)
        return str(refused.value)

    def given_up() -> None:
        raise RuntimeError("not wanted any more")

    assert "did not come to communicator lonely0.2" in wait(0.2, lambda: None)
    assert wait(60.0, given_up) == "not wanted any more"
    network.close()


def test_the_library_has_what_the_trainer_uses() -> None:
    """These names of torch can be checked without a GPU; a release of torch could remove them."""
    if not torch.distributed.is_nccl_available():
        pytest.skip("this build of torch has no NCCL")
    made = torch.distributed.ProcessGroupNCCL
    methods = ("send", "recv", "allreduce", "alltoall_base", "_allgather_base", "abort", "get_error")
    methods += ("eager_connect_single_device",)
    assert [name for name in methods if not hasattr(made, name)] == []
    options = made.Options()
    assert [name for name in ("_timeout", "group_name") if not hasattr(options, name)] == []
    options.config.blocking, options.config.max_ctas = 0, PAIR_CTAS


def test_every_channel_that_a_program_uses_is_on_the_ring_and_all_members_connect_in_one_order() -> None:
    for size in (2, 3, 5):
        channels = [nccl.ring_channels(index, size) for index in range(size)]
        assert all(own == sorted(own) for own in channels)
        wanted = {(a, b) for a in range(size) for b in ((a + 1) % size, (a - 1) % size) if a != b}
        assert set().union(*channels) == wanted
    assert nccl.ring_channels(0, 1) == []
