"""Adapters in the units of every family: the parameters that learn, the state, and saved adapters in plain peft."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from frostline_trainer.families.base import CutModel, learnable
from frostline_trainer.model import build_cut_model, numbers_saved, save_model, set_frozen
from frostline_trainer.step.unit_state import export_unit, import_unit, release_unit, reset_unit
from tests.unit.trainer import families_cases as cases
from tests.unit.trainer.test_families_model import AUTO

LAST = {"rank": 2, "blocks": "last 1"}


def built(case: str, adapters: dict[str, Any] | None = LAST, **job: Any) -> CutModel:
    return build_cut_model(cases.job_of(case, adapters=adapters, **job), cases.sizes_of(case))


def trained(cut: CutModel) -> CutModel:
    """Return the model as if it had learnt: all parameters that can learn have other values."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for unit in cut.units:
            for parameter in learnable(unit).values():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return cut


def head_names(cut: CutModel) -> set[str]:
    tied = {cut.tied[1]} if cut.tied else set()
    return {name for name, _ in cut.units[-1].named_parameters()} - tied


@pytest.mark.parametrize("case", cases.CASES)
def test_adapters_and_head_learn_and_nothing_else_does(case: str) -> None:
    cut = built(case, {**LAST, "blocks": [0]})
    for unit in cut.units:
        set_frozen(unit, True)
        assert not any(parameter.requires_grad for parameter in unit.parameters())
        set_frozen(unit, False)
    output = cases.run_units(cut.units, cases.inputs_of(case))
    output.sum().backward()
    having = [{name for name, one in unit.named_parameters() if one.grad is not None} for unit in cut.units]
    assert having[-1] == head_names(cut)
    assert having[1] and all("lora_" in name for name in having[1])
    assert not any(having[:1] + having[2:-1])


@pytest.mark.parametrize("case", cases.CASES)
def test_a_unit_whose_memory_was_given_back_is_whole_again_when_its_state_arrives(case: str) -> None:
    """Its adapters come with the state; the weights below them are sent by nobody."""
    own, other = built(case), trained(built(case))
    wanted = cases.run_units(other.units, cases.inputs_of(case))
    for index, (unit, theirs) in enumerate(zip(own.units, other.units, strict=True)):
        release_unit(unit)
        import_unit(index, unit, {}, export_unit(index, theirs, {}))
    assert torch.equal(cases.run_units(own.units, cases.inputs_of(case)), wanted)


@pytest.mark.parametrize("case", ["vit", "gpt2"])
def test_what_never_learns_is_no_state_and_stays_when_a_state_arrives(case: str) -> None:
    own, other = built(case), trained(built(case))
    for index, (unit, theirs) in enumerate(zip(own.units, other.units, strict=True)):
        state = {key: tensor.clone() for key, tensor in export_unit(index, theirs, {}).items()}
        assert {key.removeprefix("weight/") for key in state} == set(learnable(unit))
        import_unit(index, unit, {}, state)
    inputs = cases.inputs_of(case)
    assert torch.equal(cases.run_units(own.units, inputs), cases.run_units(other.units, inputs))
    with pytest.raises(ValueError, match="1 unknown"):
        import_unit(1, own.units[1], {}, {"weight/layer.extra": torch.zeros(1)})


@pytest.mark.parametrize("adapters", [None, LAST])
def test_a_unit_that_gave_its_memory_back_begins_again(adapters: dict[str, Any] | None) -> None:
    used, fresh = trained(built("bert", adapters)), built("bert", adapters)
    with torch.no_grad():
        next(used.units[1].parameters()).add_(1.0)  # a wrong weight below adapters
    for unit, new in zip(used.units, fresh.units, strict=True):
        release_unit(unit)
        reset_unit(unit, new)
        assert all(torch.equal(tensor, new.state_dict()[name]) for name, tensor in unit.state_dict().items())


@pytest.mark.parametrize("case", cases.CASES)
def test_plain_peft_loads_what_is_saved_and_scores_the_same(case: str, tmp_path: Path) -> None:
    """Where the model came from no checkpoint, its own weights below the adapters are saved too."""
    cut = trained(built(case, {"rank": 2, "alpha": 3.0, "dropout": 0.5, "blocks": "all"}))
    save_model(cut, tmp_path / "model")
    plain = AUTO[cases.CASES[case][1]].from_pretrained(tmp_path / "model/base", attn_implementation="sdpa")
    adapted = PeftModel.from_pretrained(plain, tmp_path / "model").eval()
    inputs = cases.inputs_of(case)
    expected = cases.run_units([unit.eval() for unit in cut.units], inputs)
    assert torch.equal(cases.plain_logits(adapted(**inputs)), expected)


def test_of_a_checkpoints_model_adapters_and_head_alone_are_saved(tmp_path: Path) -> None:
    save_model(build_cut_model(cases.job_of("bert"), cases.sizes_of("bert")), tmp_path / "base")
    cut = trained(built("bert", {**LAST, "targets": ["query", "output.dense"]}, path=str(tmp_path / "base")))
    save_model(cut, tmp_path / "model", dtype=torch.bfloat16)
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}
    stored = load_file(tmp_path / "model/adapter_model.safetensors")
    assert sum(tensor.numel() for tensor in stored.values()) == numbers_saved(cut)
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    learning = [name for unit in cut.units for name in learnable(unit)]
    assert len(stored) == len(learning) and any("lora_A" in name for name in learning)


@pytest.mark.parametrize(
    ("case", "adapters", "said"),
    [
        ("bert", {"targets": ["q_proj"]}, "has 'q_proj', which names no linear layer of block 0; those are .*self.query"),
        ("gpt2", {"targets": ["c_attn", "ln_1"]}, "has 'ln_1', which names no linear layer of block 0; those are attn.c_attn"),
        ("llama", {"blocks": "1-3"}, r"model\.adapters\.blocks is '1-3' and the model has the blocks 0 to 2"),
    ],
)
def test_what_the_model_does_not_have_is_refused_by_name(case: str, adapters: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        built(case, adapters)


def test_the_model_below_is_the_same_and_the_seed_says_the_rest() -> None:
    plain = build_cut_model(cases.job_of("bert"), cases.sizes_of("bert"))
    inputs = cases.inputs_of("bert")
    expected = cases.run_units(plain.units, inputs)
    first, again, other = built("bert"), built("bert"), built("bert", seed=4)
    assert torch.equal(cases.run_units(first.units, inputs), expected), "adapters begin as nothing"
    narrow = [[p for name, p in cut.units[-2].named_parameters() if "lora_A" in name] for cut in (first, again, other)]
    assert all(map(torch.equal, narrow[0], narrow[1])) and not any(map(torch.equal, narrow[0], narrow[2]))
