"""The optimizer's own updates against torch's: the same bits, for every optimizer and type."""

import pytest
import torch
from torch import nn

from frostline_contract.job.training import OptimizerSection
from frostline_trainer.model import no_decay
from frostline_trainer.step.optimizer import Moments, UnitOptimizer

SECTIONS = {
    "adamw": OptimizerSection(),
    "adamw, no decay": OptimizerSection(weight_decay=0.0),
    "sgd": OptimizerSection(name="sgd"),
    "sgd, no momentum": OptimizerSection(name="sgd", momentum=0.0),
}


def odd_unit(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(17, 37), nn.LayerNorm(37), nn.Linear(37, 1)).to(dtype)


def give_gradients(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
        parameter.grad = gradient if parameter.requires_grad else None


def torch_optimizer(section: OptimizerSection, module: nn.Module) -> torch.optim.Optimizer:
    parameters = dict(module.named_parameters())
    groups = [
        {"params": [p for name, p in parameters.items() if no_decay(module, name, p) is spared],
         "weight_decay": 0.0 if spared else section.weight_decay}
        for spared in (False, True)
    ]  # fmt: skip
    if section.name == "sgd":
        return torch.optim.SGD(groups, lr=1.0, momentum=section.momentum, foreach=True)
    betas = (section.beta1, section.beta2)
    return torch.optim.AdamW(groups, lr=1.0, betas=betas, eps=section.epsilon, fused=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SECTIONS)
def test_updates_have_the_bits_of_torchs_own_optimizers(name: str, dtype: torch.dtype) -> None:
    """Also where parameters were frozen for different times, and where sizes are no multiple of a vector register's."""
    section, ours, theirs = SECTIONS[name], odd_unit(dtype), odd_unit(dtype)
    moments: Moments = {}
    peer = torch_optimizer(section, theirs)
    for step in range(6):
        for module in (ours, theirs):
            module[0].requires_grad_(step not in (1, 2))
            give_gradients(module, step)
        UnitOptimizer(section, [(0, ours)], moments).step(0.01 / (step + 1))
        for group in peer.param_groups:
            group["lr"] = 0.01 / (step + 1)
        peer.step()
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)), f"step {step}"
    for key, parameter in theirs.named_parameters():
        held = {slot: value for slot, value in peer.state[parameter].items() if value is not None}
        assert moments.get((0, key), {}).keys() == held.keys()
        assert all(torch.equal(moments[0, key][slot], value) for slot, value in held.items())


def test_a_parameter_that_does_not_lie_in_a_row_is_named() -> None:
    """The fused kernel would pair the parameter's elements with the wrong elements of the gradient."""
    module = nn.Linear(3, 5)
    module.weight = nn.Parameter(torch.randn(3, 5).t())
    with pytest.raises(ValueError, match=r"parameter weight of unit 4 has strides \(1, 5\)"):
        UnitOptimizer(SECTIONS["adamw"], [(4, module)], {})
