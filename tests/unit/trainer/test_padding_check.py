"""The start-up check of padding: it finds layers in which padding counts, forward or backward, and leaves units as they were."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from frostline_trainer.prefix.own_tokens import own_tokens
from frostline_trainer.prefix.padding_check import find_padding_dependence
from frostline_trainer.process.setup import check_tiles
from frostline_trainer.step.context import RunContext
from tests.exact_cases import Case, build_case


def lengths_of(context: RunContext) -> np.ndarray:
    own = own_tokens(context)
    assert own is not None
    return own


@pytest.mark.parametrize(
    "case",
    [
        Case("bert_classification", "mixed_bfloat16"),
        Case("bert_regression", adapters="last half", adapter_dropout=0.2),
        Case("gpt2_tied", "float64", loss_chunk_tokens=4),
        Case("llama", "bfloat16", dropout=0.0, cells=2),
    ],
    ids=str,
)
def test_families_whose_padding_counts_nothing_pass(case: Case) -> None:
    context = build_case(case)
    drawn = torch.get_rng_state()
    assert find_padding_dependence(context, lengths_of(context)) == ""
    assert torch.equal(torch.get_rng_state(), drawn)
    for unit in context.cut.units:
        assert unit.training and all(weight.grad is None for weight in unit.parameters())


class _Leaky(nn.Module):
    """A layer in which each token sees a little of all tokens; or only its weights do, backward."""

    def __init__(self, layer: nn.Module, forward: bool) -> None:
        super().__init__()
        self.layer, self.leaks_forward = layer, forward
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, **more: Tensor) -> Tensor:
        found = self.layer(x, **more)
        found = found[0] if isinstance(found, tuple) else found
        seen = x.mean(dim=1, keepdim=True)
        return found + 1e-3 * seen if self.leaks_forward else found + (self.scale - self.scale.detach()) * seen.detach()


@pytest.mark.parametrize("forward", [True, False], ids=["forward", "backward"])
def test_a_block_that_lets_padding_count_is_found_and_its_values_are_stored_whole(forward: bool) -> None:
    context = build_case(Case("bert_classification"))
    for unit in context.cut.units[1:-1]:
        unit.layer = _Leaky(unit.layer, forward)
    check_tiles(context)
    assert context.padding_dependence == "block 0 gives other bits for other padding (float32)"
    assert own_tokens(context) is None


def test_a_head_that_reads_all_tokens_is_found() -> None:
    context = build_case(Case("bert_classification"))
    pooler = context.cut.units[-1].pooler
    pooler.forward = lambda x: pooler.activation(pooler.dense(x.mean(dim=1)))
    assert find_padding_dependence(context, lengths_of(context)).startswith("head gives other bits")
