"""Seeding a unit: the draws are those after torch.manual_seed, and nothing of other devices is touched or kept."""

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from frostline_trainer.step.stage import seed_generators


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 5, 2**63 - 1])
def test_the_draws_are_those_after_torch_manual_seed(seed: int) -> None:
    torch.manual_seed(seed)
    expected = torch.rand(64)
    seed_generators(seed, torch.device("cpu"))
    assert torch.equal(torch.rand(64), expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("index", range(max(1, torch.cuda.device_count())))
def test_every_device_of_a_pod_draws_what_it_draws_after_torch_manual_seed(index: int) -> None:
    device = torch.device("cuda", index)
    torch.manual_seed(11)
    expected = torch.rand(64, device=device)
    seed_generators(11, device)
    assert torch.equal(torch.rand(64, device=device), expected)


def test_it_is_its_own_device_that_is_seeded_and_not_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test stands in for a machine with two devices."""
    entered: list[torch.device] = []
    seeded: list[tuple[int, list[torch.device]]] = []

    @contextlib.contextmanager
    def within(device: torch.device) -> Iterator[None]:
        entered.append(device)
        yield
        entered.pop()

    monkeypatch.setattr(torch.cuda, "device", within)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: seeded.append((seed, list(entered))))
    seed_generators(7, torch.device("cuda", 1))
    assert seeded == [(7, [torch.device("cuda", 1)])]


def test_no_seed_is_prepared_for_devices_that_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.manual_seed formats a call stack for each kind of device: many times the cost of the seed itself."""
    formatted: list[Any] = []
    original = traceback.format_stack
    monkeypatch.setattr(traceback, "format_stack", lambda *given: formatted.append(given) or original(*given))
    seed_generators(3, torch.device("cpu"))
    assert not formatted
