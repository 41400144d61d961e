"""docs/comparison/tensor.md is what formula and constants say today, and what it says of the published figures holds."""

from math import prod
from pathlib import Path

import pytest

from frostline_controller.planner.tensor.traffic import BLOCK, Axes, cube, traffic
from tests.published.tensor.layouts import two_d_traffic
from tests.published.tensor.page import PAGE, text
from tests.published.tensor.rows import GOAL, check_rows, map_places, setting_rows

COMMITTED = Path(__file__).parents[2] / "docs" / "comparison" / PAGE


def test_the_page_is_what_formula_and_constants_say() -> None:
    assert COMMITTED.read_text(encoding="utf-8") == text(), "write it again: python -m tests.published.tensor"


def test_the_check_values_are_met_and_so_is_the_headline_by_its_fit_alone() -> None:
    assert all(row.met for row in check_rows())
    fit, *others = setting_rows()
    errors = [max(abs(row.over_1d / 2.32 - 1), abs(row.over_2d / 1.57 - 1)) for row in (fit, *others)]
    assert errors[0] <= GOAL < min(errors[1:])


def counted(axes: Axes, tokens: int, hidden: int) -> int:
    """Elements that a rank receives for a block's forward and backward, part by part: who gathers the parts of n ranks receives
    n - 1 of them, and who sums n parts receives n - 1 of the part that it ends with. Every division must come out even.
    """
    c, d, r = axes.columns, axes.depth, axes.replicas

    def part(*lengths: tuple[int, int]) -> int:
        assert all(length % ways == 0 for length, ways in lengths)
        return prod(length // ways for length, ways in lengths)

    received = 0
    for product in BLOCK:
        k, n = hidden * product.inputs, hidden * product.outputs
        cut_in, cut_out = (c, d) if product.is_column else (d, c)
        inputs = (cut_in - 1) * part((tokens, r * cut_in), (k, cut_out))
        outputs = (cut_out - 1) * part((tokens, r * cut_out), (n, cut_in))
        weights = (r - 1) * part((k, cut_out * r), (n, cut_in))
        received += 2 * (inputs + outputs + weights)
    return received


@pytest.mark.parametrize("axes", [Axes(4, 1, 1), Axes(1, 1, 8), Axes(4, 2, 1), Axes(2, 1, 4), cube(2), cube(3), cube(4)])
def test_what_parts_of_tensors_count_is_what_the_formula_says(axes: Axes) -> None:
    tokens, hidden = 48 * 9, 48 * 9
    assert counted(axes, tokens, hidden) == pytest.approx(traffic(axes, tokens, hidden).total, rel=1e-12)


def test_a_plane_without_depth_sends_less_than_summa_at_equal_replicas() -> None:
    """Columns q x replicas q send 4 Mh where SUMMA sends 7 Mh, times 2 (q - 1) / q^2, and as many weights."""
    for side, tokens, hidden in ((2, 4096, 512), (8, 16384, 4096)):
        summa = two_d_traffic(side**2, tokens, hidden)
        own = traffic(Axes(columns=side, replicas=side), tokens, hidden)
        assert own.columns / summa[0] == pytest.approx(4 / 7) and own.replicas == pytest.approx(summa[1])


def test_ours_wins_where_there_are_tokens_for_many_replicas() -> None:
    for ranks in (8, 64, 512):
        places = map_places(ranks)
        assert all(place.ours_wins for place in places if place.tokens == 2_097_152)
        assert not any(place.ours_wins for place in places if place.tokens == 2_048 and place.hidden > 4096)
