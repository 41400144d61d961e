"""A unit's state: moments kept over rebuilds, the state that is sent, its place in a checkpoint, and its digest."""

import pytest
import torch
from torch import nn

from frostline_contract.job.training import OptimizerSection
from frostline_trainer.model import no_decay
from frostline_trainer.step.optimizer import Moments, UnitOptimizer
from frostline_trainer.step.packing import pack, unpack
from frostline_trainer.step.unit_state import UnitState, export_unit, import_unit, run_digest, unit_digest

SECTIONS = [OptimizerSection(), OptimizerSection(name="sgd")]


def unit(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))


def give_gradients(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator) if parameter.requires_grad else None


def weights(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in module.parameters()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_a_rebuilt_optimizer_goes_on_with_the_same_moments(section: OptimizerSection) -> None:
    kept, rebuilt, moments, other = unit(), unit(), {}, {}
    one = UnitOptimizer(section, [(5, kept)], moments)
    for step in range(4):
        give_gradients(kept, step)
        one.step(0.01)
        give_gradients(rebuilt, step)
        UnitOptimizer(section, [(5, rebuilt)], other).step(0.01)
    assert same(weights(kept), weights(rebuilt))
    assert moments.keys() == other.keys() == {(5, name) for name, _ in kept.named_parameters()}


def test_one_optimizer_over_units_and_one_each_give_the_same_bits() -> None:
    pairs = [(index, unit(index)) for index in range(3)]
    singly = [(index, unit(index)) for index in range(3)]
    together, apart = {}, {}
    for step in range(3):
        for (_, a), (_, b) in zip(pairs, singly, strict=True):
            give_gradients(a, step)
            give_gradients(b, step)
        UnitOptimizer(SECTIONS[0], pairs, together).step(0.01)
        for pair in singly:
            UnitOptimizer(SECTIONS[0], [pair], apart).step(0.01)
    assert all(same(weights(a), weights(b)) for (_, a), (_, b) in zip(pairs, singly, strict=True))


def test_frozen_parameters_keep_weights_moments_and_their_own_step_count() -> None:
    module, moments = unit(), {}
    give_gradients(module, 0)
    UnitOptimizer(SECTIONS[0], [(0, module)], moments).step(0.1)
    before = {name: tensor.clone() for name, tensor in moments[0, "0.weight"].items()}
    module[0].requires_grad_(False)
    frozen = weights(module[0])
    for step in range(3):
        give_gradients(module, step)
        UnitOptimizer(SECTIONS[0], [(0, module)], moments).step(0.1)
    assert same(frozen, weights(module[0])), "no weight decay either"
    assert all(torch.equal(moments[0, "0.weight"][name], tensor) for name, tensor in before.items())
    assert [float(moments[0, name]["step"]) for name in ("0.weight", "1.weight")] == [1.0, 4.0]


def test_decay_is_for_matrices_only_and_all_frozen_is_no_optimizer() -> None:
    module = unit()
    assert [name for name, parameter in module.named_parameters() if not no_decay(module, name, parameter)] == ["0.weight"]
    start = weights(module)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    UnitOptimizer(OptimizerSection(weight_decay=0.5), [(0, module)], {}).step(0.1)
    assert torch.allclose(module[0].weight, start[0] * 0.95) and same(weights(module)[1:], start[1:])
    module.requires_grad_(False)
    moments: Moments = {}
    UnitOptimizer(SECTIONS[0], [(0, module)], moments).step(0.1)
    assert moments == {}


def trained(section: OptimizerSection = SECTIONS[0]) -> tuple[nn.Module, Moments]:
    module, moments = unit(), {}
    give_gradients(module, 1)
    UnitOptimizer(section, [(2, module)], moments).step(0.1)
    return module, moments


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.name)
def test_state_travels_as_bytes_and_the_next_step_has_the_same_bits(section: OptimizerSection) -> None:
    source, moments = trained(section)
    state = unpack(pack(export_unit(2, source, moments)))
    target, arrived = unit(9), {(2, "0.weight"): {"stale": torch.zeros(1)}, (7, "x"): {}}
    import_unit(2, target, arrived, state)
    assert (2, "0.weight") in arrived and "stale" not in arrived[2, "0.weight"] and (7, "x") in arrived
    assert unit_digest(export_unit(2, target, arrived)) == unit_digest(export_unit(2, source, moments))
    for module, held in ((source, moments), (target, arrived)):
        give_gradients(module, 4)
        UnitOptimizer(section, [(2, module)], held).step(0.1)
    assert same(weights(source), weights(target))


def test_a_state_that_does_not_fit_is_refused_and_nothing_is_changed() -> None:
    module, moments = trained()
    start, state = weights(module), export_unit(2, module, moments)
    for wrong in ({k: v for k, v in state.items() if k != "weight/0.bias"}, state | {"weight/0.bias": torch.zeros(9)},
                  state | {"weight/0.bias": torch.zeros(4, dtype=torch.float64)},
                  state | {"weight/extra": torch.zeros(1)}):  # fmt: skip
        with pytest.raises(ValueError, match="unit 2: state does not fit the model"):
            import_unit(2, module, moments, wrong)
    assert same(start, weights(module)) and moments


def test_the_digest_sees_every_bit_name_type_and_shape() -> None:
    module, moments = trained()
    state = export_unit(2, module, moments)
    plain = unit_digest(state)
    first = state["exp_avg/0.weight"].clone()
    first.view(torch.int32)[0, 0] ^= 1
    changes: list[UnitState] = [
        state | {"exp_avg/0.weight": first},
        state | {"weight/0.weight": state["weight/0.weight"].view(4, 3).reshape(3, 4)},
        state | {"weight/0.bias": state["weight/0.bias"].view(torch.int32)},
        {key.replace("0.bias", "0.tilt"): tensor for key, tensor in state.items()},
        {key: tensor for key, tensor in state.items() if key != "step/0.bias"},
    ]
    digests = {unit_digest(change) for change in changes}
    assert len(digests) == len(changes) and plain not in digests
    assert unit_digest(dict(reversed(state.items()))) == plain, "but not the order"
    skipped = unit_digest(state, frozenset({"0.weight"}))
    assert skipped == unit_digest({key: value for key, value in state.items() if not key.endswith("/0.weight")})
    assert run_digest([plain, skipped]) != run_digest([skipped, plain])
