"""Tensor tiles: dropout in them, families' tables, and what is refused or found wrong before a run begins."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, MixtralConfig
from transformers.pytorch_utils import Conv1D

from frostline_contract.pieces import Pieces
from frostline_trainer.data.split import first_samples
from frostline_trainer.families.registry import family_named
from frostline_trainer.model import build_cut_model, save_model
from frostline_trainer.prefix.prefix_probe import probe_prefix
from frostline_trainer.process.probe import run_probe
from frostline_trainer.step.parts import parts_of
from frostline_trainer.tensor.attention import TiledActivation
from frostline_trainer.tensor.checking import check_table
from frostline_trainer.tensor.dropout import by_tile
from frostline_trainer.tensor.hidden import Hidden
from frostline_trainer.tensor.install import check_heads, table_of, tile_blocks, tile_unit, tiled_layers
from frostline_trainer.tensor.linear import TiledLinear
from frostline_trainer.tensor.state import is_cut
from frostline_trainer.tensor.table import TensorTable, from_tp_plan
from frostline_trainer.tensor.tiles import Tiles
from tests.exact_cases import Case, build_case
from tests.unit.trainer import families_cases

CASE = Case("gpt2_untied", dropout=0.0)
CPU = torch.device("cpu")


def test_a_tiles_dropout_knows_nothing_of_the_others_nor_what_comes_after_it_of_any() -> None:
    def drawn(tiles: Tiles) -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(5)
        found = by_tile(tiles, "attention", CPU, True, lambda place: torch.rand(3))
        assert torch.initial_seed() == 5
        return found, torch.rand(3)

    whole, after = drawn(Tiles(4))
    assert len({tuple(one.tolist()) for one in whole}) == 4
    half, after_half = drawn(Tiles(4, 2, 2, lambda node: node))
    assert torch.equal(torch.stack(half), torch.stack(whole[2:])) and torch.equal(after, after_half)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.Tanh()], ids=str)
def test_an_activations_gradient_does_not_depend_on_the_tiles_beside_it(function: nn.Module, dtype: torch.dtype) -> None:
    """Tiles are narrower than what a kernel computes at once, so that a slice of several tiles' gradient takes another path."""
    drawn = torch.Generator().manual_seed(1)
    x, direction = (torch.randn(4000, 64, generator=drawn).to(dtype) for _ in range(2))

    def gradient(tiles: Tiles, columns: slice) -> torch.Tensor:
        entry = x[:, columns].clone().requires_grad_()
        TiledActivation(function, tiles)(entry).backward(direction[:, columns].clone())
        assert entry.grad is not None
        return entry.grad

    whole = gradient(Tiles(4), slice(None))
    for degree in (2, 4):
        held, width = 4 // degree, 64 // degree
        for tp_rank in range(degree):
            columns = slice(tp_rank * width, (tp_rank + 1) * width)
            part = Tiles(4, tp_rank * held, held, lambda node: node)
            assert torch.equal(gradient(part, columns), whole[:, columns])


def test_one_tile_is_todays_model_and_more_are_another_numerics() -> None:
    grids = ((1, 1), (2, 1), (4, 1), (2, 2), (1, 2))
    contexts = [build_case(replace(CASE, inner_tiles=inner, hidden_tiles=hidden)) for inner, hidden in grids]
    plain, *tiled = contexts
    assert plain.numerics == "" and not any(isinstance(one, TiledLinear) for one in plain.cut.model.modules())
    assert [context.numerics for context in tiled] == [
        "inner widths in 2 tiles",
        "inner widths in 4 tiles",
        "inner widths in 2 tiles, hidden width in 2",
        "hidden width in 2 tiles",
    ]
    assert len({run_probe(context)[0] for context in contexts}) == len({probe_prefix(context) for context in contexts}) == 5


@pytest.mark.parametrize(
    ("family", "tiles"),
    [
        ("vit", {"inner_tiles": 2}),
        *((family, {"inner_tiles": 2, "vocabulary_tiles": True}) for family in ("bert_classification", "gpt2_tied", "llama")),
        *((family, {"inner_tiles": 2, "hidden_tiles": 2}) for family in ("bert_classification", "gpt2_tied")),
    ],
    ids=str,
)
def test_what_is_saved_knows_nothing_of_tiles(family: str, tiles: dict[str, int], tmp_path: Path) -> None:
    plain, tiled = (build_case(Case(family, **fields)).cut for fields in ({}, tiles))
    for one, other in zip(plain.units, tiled.units, strict=True):
        assert [(name, p.shape) for name, p in one.named_parameters()] == [
            (name, p.shape) for name, p in other.named_parameters()
        ]
    for cut_model, name in ((plain, "plain"), (tiled, "tiled")):
        save_model(cut_model, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "tiled").iterdir())
    assert all((tmp_path / "plain" / name).read_bytes() == (tmp_path / "tiled" / name).read_bytes() for name in files)


@pytest.mark.parametrize("hidden", [1, 2])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("case", ["vit", "bert", "gpt2", "llama"])
def test_a_model_in_tiles_is_the_whole_one_to_rounding(case: str, attention: str, hidden: int) -> None:
    """float64 and sums of some dozen numbers: 1e-12 is a thousand roundings."""
    job, inputs = families_cases.job_of(case, precision="float64", attention=attention), families_cases.inputs_of(case)
    whole, tiled = (build_cut_model(job, families_cases.sizes_of(case)) for _ in range(2))
    tile_blocks(tiled, family_named(job.model.family), Tiles(2, hidden=Hidden(hidden)))
    expected, found = (families_cases.run_units(one.units, inputs) for one in (whole, tiled))
    assert all(tiled_layers(unit) for unit in tiled.units[1:-1])
    assert torch.allclose(expected, found, rtol=1e-12, atol=1e-12)


def test_a_norm_is_taken_tile_by_tile_of_what_tiles_cut() -> None:
    unit = build_case(replace(CASE, inner_tiles=4)).cut.units[1]
    table = Pieces.cut(8, tiles=4)
    first, *tiles = ({part.name for part in parts_of(table, piece, unit)} for piece in table.of_unit(1))
    names = {name for name, _ in unit.named_parameters()}
    assert all(tile == names - first for tile in tiles) and len(tiles) == 4
    assert first == {
        "layer.ln_1.weight", "layer.ln_1.bias", "layer.ln_2.weight", "layer.ln_2.bias", "layer.attn.c_proj.bias",
        "layer.mlp.c_proj.bias",
    }  # fmt: skip
    assert {name for name in names if not is_cut(unit, name)} == first


def test_heads_and_widths_that_tiles_do_not_divide_are_refused() -> None:
    table = TensorTable((), ())
    with pytest.raises(ValueError, match=r"inner is 8 and the model has 12 heads; it must divide them .*: 1, 2, 4$"):
        check_heads(table, SimpleNamespace(num_attention_heads=12), 8)
    grouped = SimpleNamespace(num_attention_heads=16, num_key_value_heads=2)
    with pytest.raises(ValueError, match=r"inner is 4 and the model has num_key_value_heads 2; .*: 1, 2$"):
        check_heads(table, grouped, 4)
    with pytest.raises(ValueError, match=r"the unit, 0: .*inner is 4 and the width that it cuts is 48; .* a multiple of 32"):
        tile_unit(nn.Sequential(nn.Linear(32, 48)), TensorTable(("0",), ()), Tiles(4))


@pytest.mark.parametrize(
    ("layer", "table"),
    [
        (nn.Linear(40, 32), TensorTable(("0",), ())),
        (nn.Linear(32, 40), TensorTable((), ("0",))),
        (Conv1D(32, 40), TensorTable(("0",), ())),
        (Conv1D(40, 32), TensorTable((), ("0",))),
    ],
    ids=["column", "row", "column of Conv1D", "row of Conv1D"],
)
def test_a_hidden_width_that_hidden_tiles_do_not_divide_is_refused(layer: nn.Module, table: TensorTable) -> None:
    tile_unit(nn.Sequential(copy.deepcopy(layer)), table, Tiles(2))
    with pytest.raises(ValueError, match=r"the unit, 0: .*hidden is 2 and the width that it cuts is 40; .* a multiple of 16$"):
        tile_unit(nn.Sequential(layer), table, Tiles(2, hidden=Hidden(2)))


def test_matrices_packed_into_a_weights_rows_are_not_cut_by_hidden_tiles() -> None:
    """Conv1D has them side by side in its columns; there they are."""
    table, tiles = TensorTable(("0",), (), {"0": 3}), Tiles(2, hidden=Hidden(2))
    tile_unit(nn.Sequential(Conv1D(96, 32)), table, tiles)
    tile_unit(nn.Sequential(nn.Linear(32, 96)), table, Tiles(2))
    with pytest.raises(
        ValueError, match=r"the unit, 0: .*hidden is 2 and 3 matrices are packed into the rows .*: set hidden to 1"
    ):
        tile_unit(nn.Sequential(nn.Linear(32, 96)), table, tiles)


def test_a_family_without_a_table_has_transformers_plan_or_is_refused() -> None:
    table = table_of(family_named("llama"), LlamaConfig())
    assert table.rows == ("self_attn.o_proj", "mlp.down_proj")
    assert table.together == (
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("mlp.gate_proj", "mlp.up_proj"),
    )
    with pytest.raises(
        ValueError, match=r"base_model_tp_plan of mixtral: \w+ at \S+ is not supported; set inner and hidden of training"
    ):
        from_tp_plan(MixtralConfig())
    with pytest.raises(
        ValueError,
        match=r"family stripes has no tensor_table and its config no base_model_tp_plan; inner and hidden of .* must be 1",
    ):
        table_of(SimpleNamespace(name="stripes"), SimpleNamespace())


GPT2, BERT = (family_named(name).tensor_table(None) for name in ("gpt2", "bert"))


def examine(family: str, table: TensorTable, change: Callable[[nn.Module], None] = lambda unit: None, hidden: int = 1) -> None:
    context = build_case(Case(family, dropout=0.0))
    change(context.cut.units[1])
    before = [parameter.clone() for parameter in context.cut.model.parameters()]
    samples = first_samples(context.data.train, 2)
    inputs = context.data.train.collate(samples, [0, 0])
    try:
        tiles = Tiles(2, hidden=Hidden(hidden))
        check_table(context.cut.units[1], table, tiles, inputs, torch.empty(2, *context.hidden_shape), "block 0")
    finally:
        assert all(map(torch.equal, before, context.cut.model.parameters()))


IN_TILES = "in 2 tiles(?: and 2 hidden tiles)?"
WRONG = {
    "parts": (
        "gpt2_tied",
        replace(GPT2, parts={}),
        "the output of layer.attn.c_proj is not that of the whole; .* set inner, hidden and rows of",
    ),
    "a name": ("gpt2_tied", replace(GPT2, rows=("attn.c_proj", "mlp.proj")), "names 'mlp.proj', which is no module of it"),
    "no linear layer": (
        "gpt2_tied",
        replace(GPT2, rows=("attn.c_proj", "mlp.act")),
        "layer.mlp.act is a NewGELUActivation; .* set inner and hidden of",
    ),
    "an attribute": ("gpt2_tied", replace(GPT2, inner_attributes=()), IN_TILES + " it does not compute"),
    "a row too few": ("bert_classification", replace(BERT, rows=("layer.output.dense",)), IN_TILES + " it does not compute"),
    "a column for a row": (
        "bert_classification",
        replace(BERT, columns=(*BERT.columns, "layer.output.dense"), rows=("attention.output.dense",)),
        IN_TILES + " it does not compute",
    ),
    "not together": (
        "bert_classification",
        replace(BERT, together=(("attention.self.query", "intermediate.dense"),)),
        "block 0: its tensor_table puts",
    ),
}


@pytest.mark.parametrize("hidden", [1, 2])
@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_table_is_found_and_named(mistake: str, hidden: int) -> None:
    family, table, said = WRONG[mistake]
    with pytest.raises(ValueError, match=said) as refused:
        examine(family, table, hidden=hidden)
    assert str(refused.value).startswith("block 0")


@pytest.mark.parametrize("family", ["vit", "bert_classification", "gpt2_tied", "llama"])
def test_a_right_table_is_right_in_hidden_tiles_as_well(family: str) -> None:
    """The whole block, its tiles together, and four threads of a tile each: outputs and all gradients. Matrices alone are cut."""
    context = build_case(Case(family, dropout=0.0, inner_tiles=2, hidden_tiles=2))
    examine(family, table_of(family_named(context.job.model.family), context.cut.model.config), hidden=2)
    unit = context.cut.units[1]
    assert all(is_cut(unit, name) == (parameter.ndim == 2) for name, parameter in unit.named_parameters())


class Normed(nn.Module):
    """A layer whose output is scaled by a norm over all of the inner width."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.inner = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(x)
        return found / found.square().mean(-1, keepdim=True).sqrt()


def test_a_block_whose_tiles_know_of_each_other_is_refused() -> None:
    def change(unit: nn.Module) -> None:
        unit.layer.mlp.c_fc = Normed(unit.layer.mlp.c_fc)

    table = replace(GPT2, columns=("attn.c_attn", "mlp.c_fc.inner"))
    examine("gpt2_tied", GPT2)
    with pytest.raises(ValueError, match=r"block 0: in 2 tiles the output of layer.mlp.c_proj is not that of the whole"):
        examine("gpt2_tied", table, change)


class Scaled(nn.Module):
    """A layer whose outputs are divided by the norms of their weights, each over the hidden width."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.inner = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) / self.inner.weight.square().sum(0).sqrt()


def test_a_block_whose_levels_know_of_each_other_is_refused() -> None:
    """A member of a group of columns has all weights of its outputs, one of several levels a part of each."""

    def change(unit: nn.Module) -> None:
        unit.layer.mlp.c_fc = Scaled(unit.layer.mlp.c_fc)

    table = replace(GPT2, columns=("attn.c_attn", "mlp.c_fc.inner"))
    examine("gpt2_tied", table, change)
    with pytest.raises(ValueError, match=r"block 0: in 2 tiles and 2 hidden tiles .* in another tile, and nothing has summed it"):
        examine("gpt2_tied", table, change, hidden=2)


def test_a_dropout_between_column_and_row_layers_is_refused() -> None:
    """A worker with fewer tiles would draw a smaller mask. A dropout of the hidden width may be where it likes."""

    def dropping(share: float) -> Callable[[nn.Module], None]:
        def change(unit: nn.Module) -> None:
            unit.layer.mlp.c_fc = nn.Sequential(unit.layer.mlp.c_fc, nn.Dropout(share))
            unit.layer.mlp.dropout.p = 0.1

        return change

    table = replace(GPT2, columns=("attn.c_attn", "mlp.c_fc.0"))
    examine("gpt2_tied", table, dropping(0.0))
    with pytest.raises(ValueError, match=r"^block 0: layer.mlp.c_fc.1 drops elements of the inner width"):
        examine("gpt2_tied", table, dropping(0.1))


@pytest.mark.parametrize("function", [nn.GELU(), nn.ELU(), nn.Softplus(), nn.Tanh()], ids=str)
def test_torchs_own_activations_beside_a_column_layer_are_called_for_each_tile(function: nn.Module) -> None:
    unit = nn.Sequential(nn.Linear(8, 32), function, nn.Linear(32, 8))
    tile_unit(unit, TensorTable(("0",), ("2",)), Tiles(4))
    assert isinstance(unit[1], TiledActivation) and unit[1].tiles.held == 4
