"""Llama's rotary embedding is computed once for all blocks, by sequence length and type, with the bits of one for each call."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

from frostline_trainer.families import llama
from frostline_trainer.families.llama import Rotations
from tests.exact_cases import Case, build_case

WIDTH = 32
LENGTHS = (16, 8, 16)


def run(block: nn.Module, tokens: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(2, tokens, WIDTH, generator=torch.Generator().manual_seed(tokens)).to(dtype)
    return block(x, {"attention_mask": torch.ones(2, tokens)})


def test_angles_are_computed_once_for_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[int, torch.dtype]] = []
    computed: Callable[..., Any] = Rotations._computed

    def counted(rotations: Rotations, x: torch.Tensor, tokens: int, rotary: nn.Module) -> Any:
        found.append((tokens, x.dtype))
        return computed(rotations, x, tokens, rotary)

    monkeypatch.setattr(Rotations, "_computed", counted)
    blocks = build_case(Case("llama", dropout=0.0)).cut.units[1:-1]
    for tokens in LENGTHS:
        for block in (*blocks, deepcopy(blocks[0])):
            run(block, tokens)
    run(blocks[0].double(), 8, torch.float64)
    assert found == [(16, torch.float32), (8, torch.float32), (8, torch.float64)]


def test_each_stream_computes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing orders the kernels of two streams: the thread that finds the prefix's digest has a stream of its own."""
    (block, *_) = build_case(Case("llama", dropout=0.0)).cut.units[1:-1]
    angles = []
    for stream in (1, 2, 1):
        monkeypatch.setattr(llama, "stream_of", lambda x, stream=stream: stream)
        angles.append(block.rotations.of(torch.zeros(1, 16, WIDTH), 16, block.rotary)[1])
    assert angles[0] is angles[2] is not angles[1]


def test_a_block_has_the_bits_of_angles_of_its_own() -> None:
    block = build_case(Case("llama", dropout=0.0)).cut.units[1]
    for tokens in LENGTHS:
        alone = deepcopy(block)
        alone.rotations = Rotations()
        assert torch.equal(run(block, tokens), run(alone, tokens))
