"""Seeding a unit: the draws are those after torch.manual_seed, and nothing of other devices is touched or kept."""

import traceback
from typing import Any

import pytest
import torch

from frostline_trainer.engine.stage import seed_generators


@pytest.mark.parametrize("seed", [0, 1, 2**32 + 5, 2**63 - 1])
def test_the_draws_are_those_after_torch_manual_seed(seed: int) -> None:
    torch.manual_seed(seed)
    expected = torch.rand(64)
    seed_generators(seed, "cpu")
    assert torch.equal(torch.rand(64), expected)


def test_no_seed_is_prepared_for_devices_that_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.manual_seed formats a call stack for each kind of device: many times the cost of the seed itself."""
    formatted: list[Any] = []
    original = traceback.format_stack
    monkeypatch.setattr(traceback, "format_stack", lambda *given: formatted.append(given) or original(*given))
    seed_generators(3, "cpu")
    assert not formatted
