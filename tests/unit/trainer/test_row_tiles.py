"""Row tiles: parts of a micro-batch's samples in which norms, dropout and biases of a block are computed, by one process or by
several; what cannot be divided by samples is refused before a run."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

from frostline_trainer.data.split import first_samples
from frostline_trainer.families.registry import family_named
from frostline_trainer.tensor.apart import Apart, Results
from frostline_trainer.tensor.checking import check_table
from frostline_trainer.tensor.dropout import each_seeded
from frostline_trainer.tensor.install import table_of, tile_unit
from frostline_trainer.tensor.rows import Rows, row_tiles
from frostline_trainer.tensor.tiles import Tiles
from tests.exact_cases import Case, build_case

SAMPLES = 4
CPU = torch.device("cpu")


def in_row_tiles(tiles: int, rows: int) -> Tiles:
    return Tiles(tiles, rows=Rows(rows))


def examine(family: str, whole: Tiles, change: Callable[[nn.Module], None] = lambda unit: None) -> None:
    """Check a block of a family, changed by `change`, as before a run."""
    context = build_case(Case(family, dropout=0.0))
    unit = context.cut.units[1]
    change(unit)
    samples = first_samples(context.data.train, SAMPLES)
    inputs = context.data.train.collate(samples, [0] * SAMPLES)
    named = family_named(context.job.model.family)
    entry = torch.empty(SAMPLES, *context.hidden_shape)
    check_table(unit, table_of(named, context.cut.model.config), whole, inputs, entry, "block 0")


@pytest.mark.parametrize(
    ("family", "tiles", "rows"),
    [("vit", 2, 2), ("bert_classification", 4, 4), ("gpt2_untied", 4, 4), ("gpt2_untied", 4, 2), ("llama", 2, 2)],
)
def test_who_computes_which_samples_changes_no_bit(family: str, tiles: int, rows: int) -> None:
    """The check itself compares bits: all in one process, and as many threads as there are row tiles."""
    examine(family, in_row_tiles(tiles, rows))
    assert in_row_tiles(tiles, rows).rows.numbers == range(rows)


class LessTheMean(nn.Module):
    """A layer less the mean over samples."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.inner = layer

    def forward(self, x: Tensor) -> Tensor:
        found = self.inner(x)
        return found - found.mean(0, keepdim=True)


def mix_samples(unit: nn.Module) -> None:
    unit.layer.ln_1 = LessTheMean(unit.layer.ln_1)


def scale(unit: nn.Module) -> None:
    unit.layer.scale = nn.Parameter(torch.ones(32))


class Adding(GPT2MLP):
    """A feed-forward that adds its input by itself."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def add_inside(unit: nn.Module) -> None:
    unit.layer.mlp.__class__ = Adding


MISTAKES = {
    "samples mixed": (mix_samples, "or with row tiles samples are mixed"),
    "a parameter beside layers": (scale, "rows is 2, and layer has scale beside its layers"),
    "a sum of an input and an output of row layers": (add_inside, "it does not compute"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_divided_by_samples_is_named_before_the_run(mistake: str) -> None:
    change, said = MISTAKES[mistake]
    with pytest.raises(ValueError, match=f"^block 0.*{said}"):
        examine("gpt2_untied", in_row_tiles(2, 2), change)


def test_a_row_tiles_mask_knows_nothing_of_the_others_nor_what_comes_after_it_of_any() -> None:
    def drawn(numbers: range) -> tuple[Tensor, Tensor]:
        torch.manual_seed(5)
        masks = each_seeded("row tile", numbers, "layer.drop", CPU, True, lambda _: torch.rand(3))
        return torch.stack(masks), torch.rand(3)

    whole, after = drawn(range(4))
    half, after_half = drawn(range(2, 4))
    assert torch.equal(whole[2:], half) and torch.equal(after, after_half)
    assert len({tuple(mask.tolist()) for mask in whole}) == 4
    torch.manual_seed(5)
    (other,) = each_seeded("row tile", range(1), "layer.other", CPU, True, lambda _: torch.rand(3))
    assert not torch.equal(other, whole[0])


@pytest.mark.parametrize("family", ["gpt2_untied", "bert_classification"])
def test_a_member_with_its_part_of_the_samples_keeps_less_for_the_backward(family: str) -> None:
    """Of 10 bytes of the hidden width that are kept beside 12 of the inner widths, 4 are inputs of column layers, which stay
    whole: 6 are halved, so that 19 of 22 bytes are kept."""
    context = build_case(Case(family, dropout=0.1))
    unit, model = context.cut.units[1], context.cut.model
    table = table_of(family_named(context.job.model.family), model.config)
    samples = first_samples(context.data.train, SAMPLES)
    inputs = context.data.train.collate(samples, [0] * SAMPLES)

    def kept(rows: Rows) -> int:
        found: list[int] = []

        def results_of(member: nn.Module) -> Results:
            storages: dict[int, int] = {}
            weights = {one.untyped_storage().data_ptr() for one in member.parameters()}

            def pack(tensor: Tensor) -> Tensor:
                storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            entry = row_tiles(member).own(torch.randn(SAMPLES, *context.hidden_shape)).clone().requires_grad_()
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                member(entry, inputs)
            found.append(sum(size for place, size in storages.items() if place not in weights))
            return {}

        def made(tiles: Tiles) -> nn.Module:
            copied = copy.deepcopy(unit)
            tile_unit(copied, table, tiles)
            return copied

        Apart(Tiles(2, rows=rows), made).computed(results_of)
        return max(found)

    assert kept(Rows(2)) / kept(Rows(1)) == pytest.approx(19 / 22, abs=0.03), "masks and scores are not counted in the 22"
