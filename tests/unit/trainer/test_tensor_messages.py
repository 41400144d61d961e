"""Messages between tensor-parallel groups: members send shares, receivers gather them, and no bit or address changes."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from frostline_contract.usage import Way
from frostline_trainer.step.alignment import is_aligned
from frostline_trainer.step.tied import sum_uses
from frostline_trainer.tensor.messages import Arrival, GroupTransport, gather_shares, once_a_group, own_share, share_length
from frostline_trainer.transport.collectives import Group
from frostline_trainer.transport.traffic import Tally, Traffic
from tests.unit.trainer.group_threads import in_group

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("shape", [(2, 3, 4), (3, 5, 7), (1, 1, 1), (1, 5, 1)], ids=str)
def test_shares_of_any_shape_and_type_are_the_whole_tensor_again(members: int, shape: tuple[int, ...]) -> None:
    def member(group: Group) -> list[tuple[bytes, bool]]:
        found = []
        for dtype in DTYPES:
            share, whole = own_share(drawn(shape, dtype), group), torch.empty(shape, dtype=dtype)
            assert share.shape == (share_length(whole.numel(), members),)
            gather_shares(group, share, whole)
            found.append((bits(whole), is_aligned(whole)))
        return found

    assert in_group(members, member) == [[(bits(drawn(shape, dtype)), True) for dtype in DTYPES]] * members


def test_a_share_is_a_view_where_it_can_be_and_follows_the_flat_order() -> None:
    whole = torch.arange(12.0).view(3, 4)
    second: Any = SimpleNamespace(index=1, size=2)
    assert own_share(whole, second).tolist() == [6, 7, 8, 9, 10, 11]
    assert own_share(whole, second).data_ptr() == whole.data_ptr() + 6 * 4, "no copy"
    assert own_share(whole.t(), second).tolist() == [2, 6, 10, 3, 7, 11], "in the order of a contiguous copy"
    last: Any = SimpleNamespace(index=3, size=4)
    assert own_share(torch.arange(10.0), last).tolist() == [9, 0, 0], "padded to the length of the others"
    assert own_share(torch.arange(5.0), last).tolist() == [0, 0], "nothing but padding"


class Loop:
    """A line that gives a member what its counterpart, with the same values, sends: its own share."""

    index, size = 0, 2

    def __init__(self) -> None:
        self.sent: list[torch.Tensor] = []
        self.received: list[torch.Tensor] = []
        self.waits = 0

    def send(self, tensor: torch.Tensor, to: int) -> "Loop":
        self.sent.append(tensor)
        return self

    def receive(self, tensor: torch.Tensor, source: int) -> "Loop":
        self.received.append(tensor)
        return self

    def wait(self) -> None:
        while self.sent and self.received:
            self.received.pop(0).copy_(self.sent.pop(0))

    def wait_all(self, transfers: list["Loop"]) -> None:
        self.waits += 1
        for one in transfers:
            one.wait()


def test_messages_arrive_in_order_and_both_uses_of_a_tied_matrix_are_summed() -> None:
    first, second = drawn((3, 5), torch.float32, 1), drawn((3, 5), torch.float32, 2)

    def member(group: Group) -> list[bytes]:
        line: Any = Loop()
        transport: Any = once_a_group(line, group)
        assert isinstance(transport, GroupTransport) and (transport.index, transport.size) == (0, 2)
        arriving = [transport.receive(torch.empty_like(first), 1) for _ in range(2)]
        assert all(isinstance(one, Arrival) for one in arriving) and {one.numel() for one in line.received} == {8}
        for tensor in (first, second):
            transport.send(tensor, 1)
        for one in arriving:
            one.wait()
        gradient = first.clone()
        sum_uses([gradient], transport, 1)
        assert line.waits == 1, "a send and a receive are one wait"
        return [bits(arriving[0]._whole), bits(arriving[1]._whole), bits(gradient)]

    assert in_group(2, member) == [[bits(first), bits(second), bits(first + first)]] * 2


def test_a_member_without_a_group_sends_in_its_own_line() -> None:
    line: Any = Loop()
    assert once_a_group(line, None) is line and once_a_group(line, Group(None, "alone", 0, 1)) is line


def test_a_gather_counts_as_the_groups_traffic() -> None:
    def member(group: Group) -> tuple[dict[str, int], dict[str, int]]:
        traffic, whole = Traffic(), torch.empty(3, 5)
        group.tally = Tally(traffic, Way.TP)
        gather_shares(group, own_share(whole, group), whole)
        return traffic.so_far()

    each = {Way.TP.value: 3 * 4 * 4}  # of 15 elements shares of 4, from three others
    assert in_group(4, member) == [(each, each)] * 4


def test_an_interrupted_group_ends_the_wait_for_a_message() -> None:
    def member(group: Group) -> str:
        line: Any = Loop()
        transport = GroupTransport(line, group)
        arriving = transport.receive(torch.empty(4), 1)
        transport.send(torch.ones(4), 1)
        if group.index == 1:  # the share arrives, and this member does not come to the gather
            group.interrupt()
            return "interrupted"
        with pytest.raises(RuntimeError):
            arriving.wait()
        return "ended"

    assert in_group(2, member) == ["ended", "interrupted"]
