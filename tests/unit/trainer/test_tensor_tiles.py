"""Tensor tiles: the cuts of tensors, families' tables, and what is refused or found wrong before a run begins."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import LlamaConfig, MixtralConfig

from frostline_contract.pieces import Pieces
from frostline_trainer.data.split import first_samples
from frostline_trainer.families.registry import family_named
from frostline_trainer.model import build_cut_model, save_model
from frostline_trainer.prefix.prefix_probe import probe_prefix
from frostline_trainer.process.probe import run_probe
from frostline_trainer.step.alignment import is_aligned
from frostline_trainer.step.parts import parts_of
from frostline_trainer.tensor.attention import TiledActivation
from frostline_trainer.tensor.checking import check_table
from frostline_trainer.tensor.cut import Cut
from frostline_trainer.tensor.dropout import by_tile
from frostline_trainer.tensor.install import check_heads, table_of, tile_blocks, tile_unit, tiled_layers
from frostline_trainer.tensor.layer import TiledLayer
from frostline_trainer.tensor.linear import TiledLinear
from frostline_trainer.tensor.pairs import pairwise
from frostline_trainer.tensor.state import is_cut, tile_views
from frostline_trainer.tensor.table import TensorTable, from_tp_plan
from frostline_trainer.tensor.tiles import Tiles, cut, joined
from tests.exact_cases import Case, build_case
from tests.unit.trainer import families_cases

CASE = Case("gpt2_untied", dropout=0.0)
CPU = torch.device("cpu")


@given(st.sampled_from((1, 2, 4, 8)), st.sampled_from((1, 3)), st.integers(1, 5), st.integers(0, 1))
def test_tiles_are_aligned_and_give_the_whole_again(held: int, parts: int, width: int, dim: int) -> None:
    shape = [7, 7]
    shape[dim] = held * parts * width
    whole = torch.arange(shape[0] * shape[1], dtype=torch.float32).view(shape)
    tiles = [cut(whole, dim, parts, held, place) for place in range(held)]
    assert all(tile.is_contiguous() and is_aligned(tile) for tile in tiles)
    assert torch.equal(joined(tiles, dim, parts), whole)


CUTS = st.builds(Cut, st.booleans(), st.booleans(), st.sampled_from((1, 3)))


@given(CUTS, st.sampled_from((1, 2, 4)), st.integers(1, 3), st.data())
def test_any_range_of_a_tile_is_in_views_in_the_tiles_order(one: Cut, held: int, width: int, data: st.DataObject) -> None:
    shape = [3, 3]
    shape[one.dim] = held * one.parts * width
    whole = torch.arange(shape[0] * shape[1]).view(shape)
    layer = TiledLayer(SimpleNamespace(weight=nn.Parameter(whole.float())), one, Tiles(held))  # type: ignore[arg-type]
    tiles, low = [one.tile(whole, held, place).flatten() for place in range(held)], data.draw(st.integers(0, 3 * width))
    ends = [data.draw(st.integers(min(low, len(tile)), len(tile))) for tile in tiles]
    expected = [tile[low:high].clone() for tile, high in zip(tiles, ends, strict=True)]
    for tile, high in enumerate(ends):
        views = tile_views(nn.ModuleDict({"layer": layer}), "layer.weight", whole, tile, min(low, high), high)
        assert torch.equal(torch.cat([view.reshape(-1) for view in (*views, whole.view(-1)[:0])]), expected[tile])
        for view in views:
            view.fill_(-1)
    left = int((whole >= 0).sum())
    assert left == whole.numel() - sum(map(len, expected)), "each element is in one tile, and views are in place"


def test_a_packed_layer_gives_each_tile_a_share_of_each_matrix() -> None:
    packed = torch.tensor([[10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33]])
    assert cut(packed, 1, 3, 2, 1).tolist() == [[12, 13, 22, 23, 32, 33]]


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=8, max_size=8))
def test_any_group_sums_the_same_tree(values: list[float]) -> None:
    """Ranks add their own tiles, then each other's nodes."""
    tiles = [torch.tensor([value]) for value in values]
    whole = Tiles(8).sum(tiles)
    for degree in (2, 4, 8):
        held = 8 // degree
        nodes = [pairwise(tiles[tp_rank * held : (tp_rank + 1) * held]) for tp_rank in range(degree)]
        for tp_rank in range(degree):
            part = Tiles(8, tp_rank * held, held, lambda node, nodes=nodes: pairwise(nodes))
            assert torch.equal(part.sum(tiles[tp_rank * held : (tp_rank + 1) * held]), whole)


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
    contexts = [build_case(replace(CASE, inner_tiles=count)) for count in (1, 2, 4)]
    plain, *tiled = contexts
    assert plain.numerics == "" and not any(isinstance(one, TiledLinear) for one in plain.cut.model.modules())
    assert [context.numerics for context in tiled] == ["inner widths in 2 tiles", "inner widths in 4 tiles"]
    assert len({run_probe(context)[0] for context in contexts}) == len({probe_prefix(context) for context in contexts}) == 3


@pytest.mark.parametrize("family", ["vit", "bert_classification", "gpt2_tied", "llama"])
def test_what_is_saved_knows_nothing_of_tiles(family: str, tmp_path: Path) -> None:
    plain, tiled = (
        build_case(Case(family, inner_tiles=count, vocabulary_tiles=count > 1 and family != "vit")).cut for count in (1, 2)
    )
    for one, other in zip(plain.units, tiled.units, strict=True):
        assert [(name, p.shape) for name, p in one.named_parameters()] == [
            (name, p.shape) for name, p in other.named_parameters()
        ]
    for cut_model, name in ((plain, "plain"), (tiled, "tiled")):
        save_model(cut_model, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "plain").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "tiled").iterdir())
    assert all((tmp_path / "plain" / name).read_bytes() == (tmp_path / "tiled" / name).read_bytes() for name in files)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("case", ["vit", "bert", "gpt2", "llama"])
def test_a_model_in_tiles_is_the_whole_one_to_rounding(case: str, attention: str) -> None:
    """float64 and sums of some dozen numbers: 1e-12 is a thousand roundings."""
    job, inputs = families_cases.job_of(case, precision="float64", attention=attention), families_cases.inputs_of(case)
    whole, tiled = (build_cut_model(job, families_cases.sizes_of(case)) for _ in range(2))
    tile_blocks(tiled, family_named(job.model.family), Tiles(2))
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


def test_a_family_without_a_table_has_transformers_plan_or_is_refused() -> None:
    table = table_of(family_named("llama"), LlamaConfig())
    assert table.rows == ("self_attn.o_proj", "mlp.down_proj")
    assert table.together == (
        ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        ("mlp.gate_proj", "mlp.up_proj"),
    )
    with pytest.raises(ValueError, match=r"base_model_tp_plan of mixtral: \w+ at \S+ is not supported; set training"):
        from_tp_plan(MixtralConfig())
    with pytest.raises(
        ValueError, match=r"family stripes has no tensor_table and its config no base_model_tp_plan; .* must be 1"
    ):
        table_of(SimpleNamespace(name="stripes"), SimpleNamespace())


GPT2, BERT = (family_named(name).tensor_table(None) for name in ("gpt2", "bert"))


def examine(family: str, table: TensorTable, change: Callable[[nn.Module], None] = lambda unit: None) -> None:
    context = build_case(Case(family, dropout=0.0))
    change(context.cut.units[1])
    before = [parameter.clone() for parameter in context.cut.model.parameters()]
    samples = first_samples(context.data.train, 2)
    inputs = context.data.train.collate(samples, [0, 0])
    try:
        check_table(context.cut.units[1], table, Tiles(2), inputs, torch.empty(2, *context.hidden_shape), "block 0")
    finally:
        assert all(map(torch.equal, before, context.cut.model.parameters()))


WRONG = {
    "parts": ("gpt2_tied", replace(GPT2, parts={}), "the output of layer.attn.c_proj is not that of the whole"),
    "a name": ("gpt2_tied", replace(GPT2, rows=("attn.c_proj", "mlp.proj")), "names 'mlp.proj', which is no module of it"),
    "no linear layer": ("gpt2_tied", replace(GPT2, rows=("attn.c_proj", "mlp.act")), "layer.mlp.act is a NewGELUActivation"),
    "an attribute": ("gpt2_tied", replace(GPT2, inner_attributes=()), "in 2 tiles it does not compute"),
    "a row too few": ("bert_classification", replace(BERT, rows=("layer.output.dense",)), "in 2 tiles it does not compute"),
    "a column for a row": (
        "bert_classification",
        replace(BERT, columns=(*BERT.columns, "layer.output.dense"), rows=("attention.output.dense",)),
        "in 2 tiles it does not compute",
    ),
    "not together": (
        "bert_classification",
        replace(BERT, together=(("attention.self.query", "intermediate.dense"),)),
        "block 0: its tensor_table puts",
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_wrong_table_is_found_and_named(mistake: str) -> None:
    family, table, said = WRONG[mistake]
    with pytest.raises(ValueError, match=said) as refused:
        examine(family, table)
    assert str(refused.value).startswith("block 0")


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
