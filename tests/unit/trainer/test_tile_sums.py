"""Sums over tiles, and the hidden width in parts: the same bits however members divide the tiles."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from frostline_trainer.step.alignment import is_aligned
from frostline_trainer.tensor.group import hidden_in
from frostline_trainer.tensor.hidden import Hidden
from frostline_trainer.tensor.pairs import pairwise
from frostline_trainer.tensor.tiles import Tiles
from tests.unit.trainer.group_threads import in_group

TOTAL = 4
LEVELS = pytest.mark.parametrize(("levels", "ahead"), [(1, 0), (2, 0), (2, 1), (4, 0), (4, 3)])
"""Levels that divide the hidden tiles, and how many levels on from its own a member computes, as in an audit."""


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


def by_level(levels: int, ahead: int, act: Callable[[Hidden], list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Return what each member finds with its hidden tiles."""
    if levels == 1:
        return [act(Hidden(TOTAL))]
    return in_group(levels, lambda group: act(hidden_in(group, TOTAL, ahead)))


@LEVELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_any_levels_sum_the_same_tree_and_round_it_once(dtype: torch.dtype, levels: int, ahead: int) -> None:
    """Two sums at once, as of layers of several widths that read one input."""
    drawn = torch.Generator().manual_seed(1)
    products = [
        [torch.randn(3, width, generator=drawn, dtype=torch.float64).to(dtype) for _ in range(TOTAL)] for width in (5, 16)
    ]
    exact = [[one if dtype == torch.float64 else one.float() for one in own] for own in products]
    expected = [((first + second) + (third + fourth)).to(dtype) for first, second, third, fourth in exact]
    others = [((first + second) + third) + fourth for first, second, third, fourth in products]
    assert not any(map(torch.equal, others, expected)), "another order, or a sum in half precision, has other bits"

    def sums(hidden: Hidden) -> list[torch.Tensor]:
        return hidden.sums([[own[number] for number in hidden.numbers] for own in products])

    for found in by_level(levels, ahead, sums):
        assert all(map(torch.equal, found, expected)) and {one.dtype for one in found} == {dtype}
        assert all(map(is_aligned, found))


@LEVELS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_levels_have_parts_of_the_hidden_width_and_put_them_side_by_side_again(
    dtype: torch.dtype, levels: int, ahead: int
) -> None:
    matrix = torch.arange(3 * 5 * TOTAL).view(3, -1).to(dtype)

    def parts_and_whole(hidden: Hidden) -> list[torch.Tensor]:
        parts = hidden.parts(matrix)
        return [*parts, hidden.whole(torch.cat(parts, 1))]

    found = by_level(levels, ahead, parts_and_whole)
    parts = [part for *own, _ in found[-ahead:] + found[:-ahead] for part in own]
    assert all(part.is_contiguous() and is_aligned(part) for part in parts)
    assert [part.tolist() for part in parts] == [matrix[:, 5 * place : 5 * place + 5].tolist() for place in range(TOTAL)]
    assert all(torch.equal(whole, matrix) and is_aligned(whole) for *_, whole in found)
