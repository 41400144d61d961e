"""Token cells: where sequences are cut, the inputs of a block, and the grids refused before a run begins."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from frostline_trainer.families import gpt2
from frostline_trainer.families.cells import Cell, Memory
from frostline_trainer.families.gpt2 import GPT2
from frostline_trainer.families.masks import causal_mask
from frostline_trainer.families.registry import family_named
from frostline_trainer.process.cell_check import check_cells
from frostline_trainer.process.probe import run_probe
from frostline_trainer.process.setup import _check_head
from frostline_trainer.profile import profile_units
from frostline_trainer.step.context import RunContext
from frostline_trainer.step.grid import equal_cells, grid_of
from tests.exact_cases import TOKENS, Case, build_case, job_of

CASE = Case("gpt2_untied", cells=(6, 5, 5))


@given(st.integers(1, 600), st.integers(1, 40), st.integers(0, 10**15), st.integers(0, 10**15))
def test_cells_of_equal_flops(tokens: int, cells: int, linear: int, square: int) -> None:
    cells = min(cells, tokens)
    bounds = equal_cells(cells, tokens, linear, square)
    assert (len(bounds), bounds[0], bounds[-1]) == (cells + 1, 0, tokens)
    assert all(low < high for low, high in pairwise(bounds))

    def cost(place: int) -> int:
        return 2 * linear * tokens * place + square * place * place

    # A bound is the first place that reaches its share, unless cells of one token leave no choice.
    for number, bound in enumerate(bounds[1:-1], 1):
        reached = cost(bound) * cells >= cost(tokens) * number
        first = cost(bound - 1) * cells < cost(tokens) * number
        assert (reached and first) or bound == bounds[number - 1] + 1 or bound == tokens - (cells - number)


def test_later_cells_are_shorter_where_attention_weighs() -> None:
    assert equal_cells(4, 64, 1, 0) == (0, 16, 32, 48, 64)
    assert equal_cells(4, 64, 0, 1) == (0, 32, 46, 56, 64)


@pytest.mark.parametrize("family", ["gpt2_tied", "llama"])
def test_the_grid_follows_from_the_job_alone(family: str) -> None:
    assert build_case(Case(family)).grid == ()
    once, again = (build_case(Case(family, cells=3)).grid for _ in range(2))
    assert once == again and len(once) == 4 and once[-1] == TOKENS
    assert once[1] >= once[2] - once[1] >= once[3] - once[2]
    assert build_case(Case(family, cells=(1, 8, 7))).grid == (0, 1, 9, 16)


def refusal(case: Case) -> str:
    """Return the message about a case's grid."""
    family = family_named(job_of(case).model.family)
    context = build_case(replace(case, cells=1))
    job = context.job.model_copy(update={"training": context.job.training.model_copy(update={"token_cells": case.cells})})
    with pytest.raises(ValueError) as refused:
        grid_of(job, family, context.cut.model.config, context.data.sizes)
    return str(refused.value)


def test_a_grid_that_does_not_fit_is_refused_with_a_remedy() -> None:
    assert "model.family gpt2" not in refusal(replace(CASE, cells=(8, 9)))
    assert "17 tokens, and sequences have 16; make the lengths add up" in refusal(replace(CASE, cells=(8, 9)))
    assert "token_cells is 17 and sequences have 16 tokens; lower it to 16 or less" in refusal(replace(CASE, cells=17))


@pytest.mark.parametrize("family", ["bert_question_answering", "vit"])
def test_a_family_that_reads_in_both_directions_is_refused(family: str) -> None:
    context = build_case(Case(family))
    training = context.job.training.model_copy(update={"token_cells": 4})
    job = context.job.model_copy(update={"training": training})
    with pytest.raises(ValueError, match=r"training.token_cells is 4 and model.family .* set it to 1, or take a causal family"):
        grid_of(job, family_named(job.model.family), context.cut.model.config, context.data.sizes)


@pytest.mark.parametrize("family", ["gpt2_untied", "llama"])
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_built_in_families_pass_the_check_and_are_left_as_they_were(family: str, dtype: str) -> None:
    context = build_case(Case(family, dtype, cells=(6, 5, 5)))
    before, drawn = [p.clone() for p in context.cut.model.parameters()], torch.get_rng_state()
    check_cells(context)
    assert all(map(torch.equal, before, context.cut.model.parameters())) and torch.equal(torch.get_rng_state(), drawn)
    assert all(p.grad is None and p.requires_grad for p in context.cut.model.parameters())


class WithoutMask(gpt2.Block):
    """Attends to earlier keys, but has no mask that shows which."""

    def forward(self, x: Tensor, inputs: dict[str, Tensor], cell: Cell | None = None) -> Tensor:
        if cell is None:
            return super().forward(x, inputs)
        return self.layer(x, attention_mask=None, past_key_values=cell)


class Forgetful(gpt2.Block):
    """Treats a cell as a whole sequence."""

    def forward(self, x: Tensor, inputs: dict[str, Tensor], cell: Cell | None = None) -> Tensor:
        return self.layer(x, attention_mask=None)


class BothWays(gpt2.Block):
    """Reads the tokens behind its own, but claims to be causal."""

    def forward(self, x: Tensor, inputs: dict[str, Tensor], cell: Cell | None = None) -> Tensor:
        seen = torch.ones(x.shape[0], 1, x.shape[1], x.shape[1] if cell is None else cell.stop, dtype=torch.bool)
        return self.layer(x, attention_mask=seen, past_key_values=cell)


class Recurrent(gpt2.Block):
    """Carries a state along tokens beside keys and values: each token's average with the one before it."""

    def forward(self, x: Tensor, inputs: dict[str, Tensor], cell: Cell | None = None) -> Tensor:
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], dim=1)
        return super().forward((x + before) / 2, inputs, cell)


def with_blocks(kind: type[gpt2.Block]) -> RunContext:
    context = build_case(CASE)
    context.cut.units[1:-1] = [kind(block.layer, block.attention) for block in context.cut.units[1:-1]]
    return context


WRONG = {
    WithoutMask: "the output in cells is not that of the whole sequence",
    Forgetful: "did not hand its keys and values to the cell",
    BothWays: "so the family is not causal",
    Recurrent: "the output in cells is not that of the whole sequence",
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_family_whose_cells_would_be_silently_wrong_is_refused(kind: type[gpt2.Block]) -> None:
    with pytest.raises(ValueError, match=WRONG[kind]) as refused:
        check_cells(with_blocks(kind))
    assert "token_cells" in str(refused.value) and "to 1" in str(refused.value)


def test_a_head_that_does_not_compute_each_token_by_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    context = build_case(CASE)
    _check_head(context)
    monkeypatch.setattr(gpt2.Head, "position_wise", False)
    with pytest.raises(ValueError, match=r"training.token_cells is \(6, 5, 5\) and the head of model.family gpt2 .* set it to 1"):
        _check_head(context)


def test_an_other_grid_is_another_numerics_and_another_probe() -> None:
    contexts = [build_case(replace(CASE, cells=cells)) for cells in (1, 2, (6, 5, 5), (6, 4, 6))]
    assert [context.numerics for context in contexts[::2]] == ["", "tokens in cells of 6, 5, 5"]
    assert len({run_probe(context)[0] for context in contexts}) == len(contexts)


def test_units_are_measured_in_cells_and_the_embedding_as_a_whole() -> None:
    """In cells each block keeps the keys and values of all tokens too, so it holds more between forward and backward."""
    whole, cells = (profile_units(build_case(replace(CASE, dropout=0.0, cells=cells))).units for cells in (1, (8, 8)))
    assert all(unit.forward_seconds > 0 and unit.backward_seconds > 0 for unit in cells)
    assert cells[0].activation_bytes == whole[0].activation_bytes
    assert cells[1].activation_bytes > whole[1].activation_bytes


def test_keys_come_in_order_and_gradients_go_in_the_other() -> None:
    memory = Memory(6)
    cells = [Cell(0, 2, memory), Cell(2, 5, memory), Cell(5, 6, memory)]
    with pytest.raises(RuntimeError, match=r"cell \[2, 5\) comes when only the tokens \[0, 0\) are here"):
        cells[1].update(torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2))
    outputs = []
    for cell in cells:
        part = torch.ones(1, 1, cell.stop - cell.start, 2, requires_grad=True)
        assert not cell.was_updated()
        keys, values = cell.update(part, part)
        assert cell.was_updated() and keys.shape[2] == cell.stop
        outputs.append((part, (keys + values).sum()))
    with pytest.raises(RuntimeError, match=r"cell \[2, 5\) goes backward before the tokens \[5, 6\)"):
        outputs[1][1].backward(retain_graph=True)
    for _, output in reversed(outputs):
        output.backward(retain_graph=True)
    assert [part.grad.unique().tolist() for part, _ in outputs] == [[6.0], [4.0], [2.0]]
    # The second half of a split backward asks again, and nothing is added twice.
    outputs[0][0].grad = None
    outputs[0][1].backward()
    assert outputs[0][0].grad.unique().tolist() == [6.0]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_cells_mask_is_the_rows_of_the_whole_one(attention: str) -> None:
    x, valid = torch.zeros(2, 7, 4), torch.ones(2, 7)
    valid[1, 5:] = 0
    whole, cell = causal_mask(x, valid, attention), Cell(3, 6, Memory(7))
    assert torch.equal(causal_mask(x[:, 3:6], valid, attention, cell), whole[:, :, 3:6, :6])
    assert causal_mask(x[:, 3:6], None, attention, cell) is not None


def test_families_say_whether_they_are_causal() -> None:
    assert [getattr(family_named(name), "causal", False) for name in ("gpt2", "llama", "bert", "vit")] == [
        True,
        True,
        False,
        False,
    ]
    assert GPT2.causal
