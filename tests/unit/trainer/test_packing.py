"""A state as a row of bytes: one copy at the sender, none at the receiver; bytes that nobody packed are refused."""

import json

import pytest
import torch

from frostline_trainer.memory import LiveBytes
from frostline_trainer.step.alignment import is_aligned
from frostline_trainer.step.packing import HEAD, TYPES, pack, unpack


def state() -> dict[str, torch.Tensor]:
    """Return a state with every type, odd sizes, a number, an empty tensor, and a tensor that is not contiguous."""
    draw = torch.Generator().manual_seed(3)
    made = {f"weight/{name}": torch.randint(0, 2, (3, 5), generator=draw).to(dtype) for name, dtype in TYPES.items()}
    turned = torch.randn(4, 6, generator=draw).t()
    return {**made, "step/a": torch.tensor(7.0), "weight/none": torch.empty(0, 3), "weight/turned": turned}


def test_a_state_comes_as_it_was_and_aligned() -> None:
    given, come = state(), unpack(pack(state()))
    assert list(come) == list(given)
    for key, tensor in given.items():
        assert (come[key].dtype, come[key].shape) == (tensor.dtype, tensor.shape) and is_aligned(come[key])
        assert torch.equal(come[key], tensor), key


def test_a_state_is_copied_once_where_it_is_sent_and_not_where_it_comes() -> None:
    """It was once copied three times at each end, so that a unit of a gigabyte took four of host memory there."""
    large = {"weight/a": torch.zeros(1 << 18), "exp_avg/a": torch.zeros(1 << 18)}
    bytes_of = sum(tensor.nbytes for tensor in large.values())
    with LiveBytes(torch.device("cpu")) as sender:
        row = pack(large)
    assert bytes_of <= sender.peak < 1.01 * bytes_of + 4096
    with LiveBytes(torch.device("cpu")) as receiver:
        come = unpack(row)
    assert receiver.peak < 4096
    assert come["weight/a"].untyped_storage().data_ptr() == row.untyped_storage().data_ptr()


def row_of(head: object, payload: int = 0) -> torch.Tensor:
    reported = json.dumps(head).encode()
    content = len(reported).to_bytes(HEAD, "big") + reported
    return torch.tensor(list(content + bytes(payload)), dtype=torch.uint8)


@pytest.mark.parametrize(
    "row",
    [
        torch.empty(0, dtype=torch.uint8),
        torch.full((HEAD,), 255, dtype=torch.uint8),
        torch.tensor([0] * 7 + [4, 123, 123, 123, 123], dtype=torch.uint8),
        row_of({"a": 1}),
        row_of([["a", "float32"]]),
        row_of([["a", "object", [1]]], 64),
        row_of([["a", ["float32"], [1]]], 64),
        row_of([[1, "float32", [1]]], 64),
        row_of([["a", "float32", [-1]]], 64),
        row_of([["a", "float32", [True]]], 64),
        row_of([["a", "float32", [1 << 60, 1 << 60]]], 64),
        row_of([["a", "float32", [1] * 9]], 64),
        row_of([["a", "float32", [0]], ["a", "float32", [0]]], 15),
        row_of([["a", "uint8", [3]]], 500),
        pack(state())[:-1],
    ],
    ids=lambda row: f"{row.numel()} bytes",
)
def test_a_row_that_nobody_packed_is_refused(row: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="what came is no state"):
        unpack(row)
