"""Tiles of the vocabulary: their widths, lookups, losses and predictions, and what is refused or found wrong before a run."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from frostline_contract.tile_grid import TileBox, TileGrid
from frostline_trainer.data.split import IGNORED, first_samples
from frostline_trainer.families.registry import family_named
from frostline_trainer.tasks.base import WholeVocabulary
from frostline_trainer.tensor.apart import Apart
from frostline_trainer.tensor.checking_vocabulary import check_embedding, check_logits
from frostline_trainer.tensor.cut import VocabularyCut
from frostline_trainer.tensor.install import tile_embedding, tile_logits
from frostline_trainer.tensor.table import TensorTable
from frostline_trainer.tensor.tiles import Tiles
from frostline_trainer.tensor.vocabulary import TiledEmbedding
from tests.exact_cases import Case, build_case

TABLE = TensorTable((), (), embedding="words", logits="logits")
DTYPES = [torch.float32, torch.bfloat16, torch.float64]
ENTRIES, WIDTH, ITEMS, TILES = 97, 32, 23, 4


class Model(nn.Module):
    """An embedding and a projection to the vocabulary, like the first and the last unit of a language model."""

    def __init__(self, dtype: torch.dtype, padding: int | None = None, bias: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words = nn.Embedding(ENTRIES, WIDTH, padding_idx=padding, dtype=dtype)
        self.logits = nn.Linear(WIDTH, ENTRIES, bias=bias, dtype=dtype)


def in_tiles(model: Model, tiles: Tiles) -> Model:
    tile_embedding(model, TABLE, tiles)
    model.vocabulary = tile_logits(model, TABLE, tiles)
    return model


def losses_of(model: Model) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(5)
    ids = torch.randint(ENTRIES, (2, ITEMS), generator=drawn)
    labels = torch.randint(ENTRIES, (2, ITEMS), generator=drawn)
    labels[0, :3], labels[1, 0] = IGNORED, ENTRIES - 1
    weights = torch.rand(2, ITEMS, generator=drawn)
    vocabulary = getattr(model, "vocabulary", WholeVocabulary())
    hidden = model.words(ids)
    hidden.retain_grad()
    logits = model.logits(hidden)
    losses = vocabulary.cross_entropies(logits, labels)
    (losses * weights.to(losses.dtype)).sum().backward()
    gradients = {f"the gradient of {name}": p.grad for name, p in model.named_parameters()}
    return {
        "hidden": hidden.detach(), "losses": losses.detach(), "best": vocabulary.best(logits.detach()),
        "sum": vocabulary.summed_cross_entropy(logits.detach(), labels), "the gradient of hidden": hidden.grad, **gradients,
    }  # fmt: skip


@given(st.integers(1, 400), st.sampled_from((1, 2, 4, 8)), st.integers(1, 3))
def test_tiles_of_a_vocabulary_cover_it_and_are_put_together(entries: int, total: int, width: int) -> None:
    try:
        one = VocabularyCut.of(entries, total)
    except ValueError:
        assert entries <= 8 * total * (total - 1)
        return
    whole = torch.arange(entries * width).view(entries, width)
    for held in (1, 2, 4, 8)[: total.bit_length()]:
        tiles = [one.tile(whole, held, place) for place in range(held)]
        assert torch.equal(one.whole(tiles), whole)
        box = TileGrid(held).all
        assert all(map(torch.equal, tiles, one.places(whole, box)))
        each = total // held
        assert [len(tile) for tile in tiles] == [one.count(range(place * each, (place + 1) * each)) for place in range(held)]
        for place, tile in enumerate(tiles):
            view = one.view(whole, box, place)
            assert torch.equal(view, tile) and view.data_ptr() == whole[view[0, 0] // width].data_ptr(), "in place"
    every = [one.tile(whole, total, tile) for tile in range(total)]
    for first in range(total):
        for last in range(first + 1, total + 1):
            wanted, grid = range(first, last), TileGrid(total)
            again = one.put_together(whole, grid.all, TileBox(grid, wanted, range(1)), {tile: every[tile] for tile in wanted})
            assert torch.equal(again, torch.cat(every[first:last]))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("total", [2, TILES])
def test_who_computes_which_tile_changes_no_bit(dtype: torch.dtype, total: int) -> None:
    together = losses_of(in_tiles(Model(dtype, padding=7, bias=True), Tiles(total)))
    apart = Apart(Tiles(total), lambda tiles: in_tiles(Model(dtype, padding=7, bias=True), tiles)).computed(losses_of)
    assert together.keys() == apart.keys()
    assert [name for name, one in together.items() if not torch.equal(one, apart[name])] == []


@pytest.mark.parametrize("padding", [None, 7])
def test_tiles_compute_what_the_whole_vocabulary_gives(padding: int | None) -> None:
    """float64: the terms of a sum come in another order, so that the last digits of some dozen roundings may differ."""
    whole, tiles = losses_of(Model(torch.float64, padding)), losses_of(in_tiles(Model(torch.float64, padding), Tiles(TILES)))
    assert torch.equal(whole["hidden"], tiles["hidden"]) and torch.equal(whole["best"], tiles["best"])
    for name, expected in whole.items():
        assert torch.allclose(expected, tiles[name], rtol=1e-12, atol=1e-14), name
    assert (tiles["losses"][0, :3] == 0).all() and (tiles["losses"][0, 3:] > 0).all()
    if padding is not None:
        assert not tiles["the gradient of words.weight"][padding].any()


def test_a_negative_zero_crosses_between_ranks() -> None:
    def lookup(tiles: Tiles) -> nn.Module:
        layer = nn.Embedding(ENTRIES, WIDTH)
        layer.weight.data.fill_(-0.0)
        return TiledEmbedding(layer, VocabularyCut.of(ENTRIES, TILES), tiles)

    found = Apart(Tiles(TILES), lookup).computed(lambda unit: {"hidden": unit(torch.arange(ENTRIES)).detach()})["hidden"]
    assert torch.signbit(found).all() and not found.any()


def test_of_equal_logits_the_first_is_the_prediction_whoever_computes_it() -> None:
    def best(unit: nn.Module) -> dict[str, torch.Tensor]:
        logits = torch.zeros(3, unit.logits.weight.shape[0])
        return {"best": unit.vocabulary.best(logits)}

    assert best(in_tiles(Model(torch.float32), Tiles(TILES)))["best"].tolist() == [0, 0, 0]
    assert Apart(Tiles(TILES), lambda tiles: in_tiles(Model(torch.float32), tiles)).computed(best)["best"].tolist() == [0, 0, 0]


def test_an_entry_outside_the_vocabulary_is_an_error_as_without_tiles() -> None:
    with pytest.raises(IndexError):
        in_tiles(Model(torch.float32), Tiles(TILES)).words(torch.tensor([ENTRIES]))


def test_logits_that_are_not_finite_give_a_loss_that_is_not_finite() -> None:
    """So that the step is refused, as without tiles."""
    model = in_tiles(Model(torch.float32), Tiles(TILES))
    for value in (float("nan"), float("inf")):
        logits = torch.zeros(1, ENTRIES)
        logits[0, 40] = value
        assert not torch.isfinite(model.vocabulary.cross_entropies(logits, torch.tensor([3]))).any()
    assert functional.cross_entropy(logits, torch.tensor([3])).isnan()


@pytest.mark.parametrize("family", ["bert_classification", "gpt2_tied", "llama"])
def test_a_familys_vocabulary_is_cut_and_checked(family: str) -> None:
    context = build_case(Case(family, dropout=0.0, inner_tiles=2, vocabulary_tiles=True))
    assert context.numerics == "inner widths and vocabulary in 2 tiles"
    names = [name for name, module in context.cut.units[0].named_modules() if isinstance(module, TiledEmbedding)]
    assert len(names) == 1
    assert hasattr(context.task, "vocabulary") == (family != "bert_classification")
    assert family == "bert_classification" or not isinstance(context.task.vocabulary, WholeVocabulary)


class Capped(nn.Module):
    """A head that norms over the vocabulary, which no tile can."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, x: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = self.head(x, inputs)
        return logits - logits.mean(-1, keepdim=True) / 7


class Shifted(Capped):
    """A head that adds a number for each entry, of which a tile has fewer."""

    def forward(self, x: torch.Tensor, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.head(x, inputs) + torch.arange(ENTRIES)


GPT2 = family_named("gpt2").tensor_table(None)
MISTAKES: dict[str, tuple[Callable[[Case], None], str]] = {
    "no table": (lambda case: examine(case, replace(GPT2, logits="")), "tensor_table names no logits; it must name one"),
    "a norm": (lambda case: examine(case, replace(GPT2, logits="norm")), "names 0 modules of type Linear for logits='norm'"),
    "knows the tiles": (lambda case: examine(case, GPT2, Capped), "in 4 tiles of the vocabulary .* is not that of the whole"),
    "does not compute": (lambda case: examine(case, GPT2, Shifted), "in 4 tiles of the vocabulary it does not compute .*lm_head"),
    "few entries": (lambda case: tile_logits(nn.ModuleDict({"a": nn.Linear(8, 24)}), replace(GPT2, logits="a"), Tiles(4)),
                    "the vocabulary has 24 entries: with 8 in each tile the last has none; set vocabulary to false, or lower"),
    "limited": (lambda case: tile_embedding(nn.ModuleDict({"wte": nn.Embedding(99, 8, max_norm=1.0)}), GPT2, Tiles(2)),
                "wte: max_norm, .* set training.tensor_tiles.vocabulary to false"),
}  # fmt: skip


def examine(case: Case, table: TensorTable, wrap: Callable[[nn.Module], nn.Module] = lambda unit: unit) -> None:
    context = build_case(case)
    samples = first_samples(context.data.train, 2)
    inputs, entry = context.data.train.collate(samples, [0, 0]), torch.empty(2, *context.hidden_shape)
    check_embedding(context.cut.units[0], table, TILES, inputs, entry, "embedding")
    check_logits(wrap(context.cut.units[-1]), table, TILES, inputs, entry, "head")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_and_named_before_the_run(mistake: str) -> None:
    act, said = MISTAKES[mistake]
    with pytest.raises(ValueError, match=said):
        act(Case("gpt2_untied", dropout=0.0))
