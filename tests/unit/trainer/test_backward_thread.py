"""Backward passes on a device run in the thread that asks for them. torch has one thread for each device otherwise, which a lock
stands for here: backward passes of other threads do not begin before its owner's has ended."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from frostline_trainer.process.setup import settle_torch
from frostline_trainer.tensor import apart
from frostline_trainer.tensor.apart import Apart
from frostline_trainer.tensor.tiles import Tiles
from tests.exact_cases import Case, build_case

PATIENCE = 5.0
CPU = torch.device("cpu")


@pytest.fixture
def one_thread_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, backward = threading.Lock(), Tensor.backward

    def in_turn(tensor: Tensor, *arguments: Any, **named: Any) -> None:
        shared = torch._C._is_multithreading_enabled()
        if shared and not lock.acquire(timeout=PATIENCE):
            raise TimeoutError("the device's thread is in another backward")
        try:
            backward(tensor, *arguments, **named)
        finally:
            if shared:
                lock.release()

    monkeypatch.setattr(Tensor, "backward", in_turn)


@pytest.fixture
def torch_as_it_is() -> Iterator[None]:
    """Give the session's thread its setting back."""
    before = torch._C._is_multithreading_enabled()
    yield
    torch.autograd.set_multithreading_enabled(before)


@pytest.mark.usefixtures("one_thread_for_the_device")
def test_tiles_that_are_checked_apart_meet_inside_their_backward_passes() -> None:
    assert build_case(Case("gpt2_untied", inner_tiles=2, dropout=0.0)).tiles.total == 2


@pytest.mark.usefixtures("torch_as_it_is")
def test_the_thread_that_trains_runs_its_backward_itself() -> None:
    torch.autograd.set_multithreading_enabled(True)
    with torch.autograd.set_multithreading_enabled(True):
        settle_torch(CPU)
        assert not torch._C._is_multithreading_enabled()


class SumsOften(nn.Module):
    """A unit that sums `times` over its tiles."""

    def __init__(self, tiles: Tiles, times: int) -> None:
        super().__init__()
        self.tiles, self.times = tiles, times

    def sum(self) -> dict[str, Tensor]:
        found = torch.ones(2)
        for _ in range(self.times):
            found = self.tiles.sum([found])
        return {apart.UNIT: found}


def test_tiles_that_do_not_sum_alike_end_the_check_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "MEETING_SECONDS", 0.2)
    uneven = Apart(Tiles(2), lambda tiles: SumsOften(tiles, 1 + tiles.first))
    with pytest.raises(RuntimeError, match=r"do not sum in the same places: one waited 0\.2 s"):
        uneven.computed(SumsOften.sum)


def test_a_tiles_own_mistake_is_told_and_not_that_others_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    def results_of(unit: SumsOften) -> dict[str, Tensor]:
        if unit.tiles.first == 1:
            raise ValueError("this tile's layer has no bias")
        return unit.sum()

    with pytest.raises(ValueError, match="has no bias"):
        Apart(Tiles(2), lambda tiles: SumsOften(tiles, 1)).computed(results_of)
