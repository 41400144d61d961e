"""Adapters in tensor tiles: what they compute, draw, hold and save, beside the whole matrices."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, BertForSequenceClassification

from frostline_trainer.families.base import learnable, still_names
from frostline_trainer.families.registry import family_named
from frostline_trainer.model import build_cut_model, save_model
from frostline_trainer.step.still_tiles import hold_all_still_tiles, hold_still_tiles, still_tiles_of_another, still_weights
from frostline_trainer.tensor.attention import TiledDropout
from frostline_trainer.tensor.install import tile_blocks, tiled_layers
from frostline_trainer.tensor.state import is_cut, layer_of
from frostline_trainer.tensor.tiles import Tiles
from tests.exact_cases import BLOCKS, Case, adapt, build_case
from tests.oracle.models import small_batch, small_model
from tests.oracle.plain_loop import Recipe
from tests.oracle.whole_batch import BOUNDS, accumulated_gradient, relative_gap, whole_batch_gradient
from tests.unit.trainer import families_cases as cases
from tests.unit.trainer.test_adapters import trained

FAMILIES = ["vit", "bert", "gpt2", "llama"]
ALL = {"rank": 4, "alpha": 6.0, "blocks": "all"}
ADAPTED = Case("gpt2_tied", inner_tiles=4, adapters="all", adapter_dropout=0.5)


def half(first: int) -> Tiles:
    """Return two of four tiles, for a member that sums with nobody."""
    return Tiles(4, first, 2, lambda node: node)


@pytest.mark.parametrize("case", FAMILIES)
def test_outputs_and_gradients_in_tiles_are_those_of_the_whole_to_rounding(case: str) -> None:
    job, inputs = cases.job_of(case, precision="float64", adapters=ALL), cases.inputs_of(case)
    whole, tiled = (trained(build_cut_model(job, cases.sizes_of(case))) for _ in range(2))
    tile_blocks(tiled, family_named(job.model.family), Tiles(2))
    outputs = [cases.run_units(one.units, inputs) for one in (whole, tiled)]
    direction = torch.randn(outputs[0].shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    for output in outputs:
        output.backward(direction)
    assert torch.allclose(*outputs, rtol=1e-12, atol=1e-12)
    for one, other in zip(whole.units[1:-1], tiled.units[1:-1], strict=True):
        named = dict(other.named_parameters())
        assert learnable(one).keys() == learnable(other).keys() and len(tiled_layers(other)) >= 2 * len(learnable(other)) / 2
        for name, parameter in learnable(one).items():
            assert parameter.grad is not None and named[name].grad is not None
            assert (parameter.grad - named[name].grad).norm() <= 1e-10 * parameter.grad.norm(), name


@pytest.mark.parametrize("family", ["bert_classification", "gpt2_tied", "llama"])
def test_the_oracles_gradient_in_tiles_is_the_whole_batch_gradient_of_plain_peft(family: str) -> None:
    def adapted() -> nn.Module:
        model = small_model(family, torch.float64, blocks=BLOCKS)
        adapt(model, Case(family, adapters="all"))
        generator = torch.Generator().manual_seed(3)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_()
            if "lora_B" in name:  # zero at first, which hides the other one's gradient
                parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        return model

    batch = small_batch(family, 24, padding_rows=3, dtype=torch.float64)
    found = accumulated_gradient(adapted(), batch, Recipe(micro_batch_size=2, inner_tiles=2))
    assert sum("lora_" in name for name in found) >= 8 * BLOCKS
    assert relative_gap(found, whole_batch_gradient(adapted(), batch)) <= BOUNDS[torch.float64]


@pytest.mark.parametrize(("family", "plain_class"), [("bert_classification", BertForSequenceClassification),
                                                     ("gpt2_tied", AutoModelForCausalLM)])  # fmt: skip
def test_what_is_saved_knows_nothing_of_tiles_and_plain_peft_scores_the_same(
    family: str, plain_class: type, tmp_path: Path
) -> None:
    case = Case(family, "float64", adapters="all", dropout=0.0)
    whole, tiled = (trained(build_case(replace(case, inner_tiles=count)).cut) for count in (1, 2))
    for cut, name in ((whole, "whole"), (tiled, "tiled")):
        save_model(cut, tmp_path / name)
    files = sorted(path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*") if path.is_file())
    assert files == sorted(path.relative_to(tmp_path / "tiled") for path in (tmp_path / "tiled").rglob("*") if path.is_file())
    assert all((tmp_path / "whole" / name).read_bytes() == (tmp_path / "tiled" / name).read_bytes() for name in files)
    plain = plain_class.from_pretrained(tmp_path / "tiled/base", dtype=torch.float64)
    adapted = PeftModel.from_pretrained(plain, tmp_path / "tiled", autocast_adapter_dtype=False).eval()
    inputs = {key: one for key, one in small_batch(family, 4).items() if key != "labels"}
    found = cases.run_units([unit.eval() for unit in tiled.units], inputs)
    assert torch.allclose(adapted(**inputs).logits, found, rtol=1e-12, atol=1e-12)


def test_the_matrix_at_the_inner_width_is_cut_and_the_other_one_is_not() -> None:
    unit = build_case(ADAPTED).cut.units[1]
    cut = {name.removeprefix("layer.").removesuffix(".weight") for name in learnable(unit) if is_cut(unit, name)}
    assert cut == {"attn.c_attn.lora_B.default", "attn.c_proj.lora_A.default", "mlp.c_fc.lora_B.default",
                   "mlp.c_proj.lora_A.default"}  # fmt: skip
    packed = layer_of(unit, "layer.attn.c_attn.lora_B.default.weight")
    assert packed is not None and packed.cut.parts == 3, "each tile has rows of query, key and value"


def test_a_tiles_mask_before_a_row_layers_adapter_knows_nothing_of_the_others() -> None:
    unit = build_case(ADAPTED).cut.units[1].train()
    dropouts = [one for one in unit.modules() if isinstance(one, TiledDropout)]
    assert len(dropouts) == 2
    x = torch.ones(3, 64)

    def drawn(dropout: TiledDropout, tiles: Tiles, first: int) -> torch.Tensor:
        dropout.tiles = tiles
        torch.manual_seed(5)
        return dropout(x[:, 16 * first : 16 * (first + tiles.held)])

    masks = [drawn(dropout, Tiles(4), 0) for dropout in dropouts]
    assert not torch.equal(*masks) and 0 < float((masks[0] == 0).float().mean()) < 1
    assert all(torch.equal(drawn(dropouts[0], half(first), first), masks[0][:, 16 * first :][:, :32]) for first in (0, 2))
    assert torch.equal(dropouts[0].eval()(x), x)


def test_tiles_of_what_never_learns_come_from_the_whole_and_are_told_as_they_are() -> None:
    unit = build_case(ADAPTED).cut.units[1]
    still = {name: unit.get_parameter(name).clone() for name in still_names(unit)}
    cut = [name for name in still if is_cut(unit, name)]
    assert len(cut) == 6, "four weights, and the biases of two column layers"

    def held() -> dict[str, torch.Tensor]:
        return {name: unit.get_parameter(name) for name in cut}

    for tiles in (half(2), Tiles(4, 1, 1, lambda node: node), half(0)):
        hold_still_tiles(unit, tiles)
        for name, parameter in held().items():
            layer = layer_of(unit, name)
            assert layer is not None and layer.kept.numbers == tiles.numbers
            own = [layer.cut.tile(still[name], 4, tile) for tile in tiles.numbers]
            assert torch.equal(parameter, layer.cut.whole(own)), name
        assert all(torch.equal(one, still[name]) for name, one in still_weights(unit).items())
    with still_tiles_of_another([unit], half(2)):
        assert all(layer.tiles.first == 2 for layer in tiled_layers(unit).values())
        assert {layer_of(unit, name).kept.first for name in cut} == {2}  # type: ignore[union-attr]
    assert {layer_of(unit, name).kept.first for name in cut} == {0}  # type: ignore[union-attr]
    with torch.no_grad():
        unit.get_parameter(wrong := "layer.attn.c_attn.base_layer.weight").view(-1)[0] += 1.0
    assert not torch.equal(still_weights(unit)[wrong], still[wrong]), "a wrong copy on the device is told"
    hold_all_still_tiles(unit)
    assert all(torch.equal(unit.get_parameter(name), one) for name, one in still.items() if name != wrong)
