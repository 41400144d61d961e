"""A backward in two parts has the bits of a whole one, and walks the graph to the input once if no weight is used twice."""

import pytest
import torch
from torch import nn

from frostline_trainer.step import compiling
from frostline_trainer.step.split_backward import SplitBackward


class Counted(torch.autograd.Function):
    """The identity, with its backwards counted."""

    walks = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Counted.walks += 1
        return gradient


class Stage(nn.Module):
    """Layers with biases, a normalization, a cast of weights, a bare parameter, and optionally one layer used twice."""

    def __init__(self, twice: bool) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16, bias=False)
        self.place, self.twice = nn.Parameter(torch.randn(5, 16)), twice

    def forward(self, x):
        x = Counted.apply(torch.tanh(self.norm(self.first(x) + self.place)))
        x = x + self.first(x) if self.twice else x
        return torch.nn.functional.linear(x.bfloat16(), self.last.weight.bfloat16()).float()


def gradients(twice: bool, split: bool, recomputes: bool = False) -> tuple[list[torch.Tensor], int]:
    """Return (gradients of the entry and the weights, added to those before; the number of walks over the graph's middle)."""
    torch.manual_seed(0)
    stage, entry = Stage(twice), torch.randn(3, 5, 16, requires_grad=True)
    weights, gradient = list(stage.parameters()), torch.randn(3, 5, 16)
    for weight in weights:
        weight.grad = torch.full_like(weight, 0.3)
    output, Counted.walks = stage(entry), 0
    if split:
        halves = SplitBackward(output, gradient, entry, weights, recomputes)
        assert all(torch.equal(weight.grad, torch.full_like(weight, 0.3)) for weight in weights)
        halves.close()
    else:
        output.backward(gradient)
    return [entry.grad, *(weight.grad for weight in weights)], Counted.walks


@pytest.mark.parametrize(("twice", "recomputes", "walks"), [(False, False, 1), (True, False, 2), (False, True, 2)])
def test_both_halves_have_the_bits_of_a_whole_backward(twice: bool, recomputes: bool, walks: int) -> None:
    whole, once = gradients(twice, split=False)
    halves, found = gradients(twice, split=True, recomputes=recomputes)
    assert all(torch.equal(one, other) for one, other in zip(whole, halves, strict=True))
    assert (once, found) == (1, walks)


def test_a_compiled_unit_gives_both_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its whole backward is one operation, which is called twice. The passes before kernels need no C++ compiler."""
    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    found = []
    for split in (False, True):
        torch.manual_seed(0)
        unit, entry = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8)), torch.randn(4, 8, requires_grad=True)
        output, weights = compiling.compiled(unit)(entry), list(unit.parameters())
        if split:
            SplitBackward(output, torch.ones(4, 8), entry, weights).close()
        else:
            output.backward(torch.ones(4, 8))
        found.append([entry.grad, *(weight.grad for weight in weights)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_loss_of_a_stage_without_weights_leads_up_and_has_nothing_to_close() -> None:
    entry = torch.randn(4, requires_grad=True)
    halves = SplitBackward((entry * 3).sum(), None, entry, [])
    assert entry.grad.tolist() == [3.0] * 4
    halves.close()
