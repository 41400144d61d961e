"""Tiles of the vocabulary are numerics too: every shape has the bits of a plain loop that computes the same tiles
(docs/protocols.md 1.26)."""

from dataclasses import replace
from typing import Any

import pytest

from tests.exact_cases import THAWING, Case
from tests.hand_made_plans import Layout, Segment, grouped, run_series
from tests.integration.test_exactness import differences
from tests.warm_workers import WarmWorkers

FREEZING = ((2, 1), (3, 3))
BASE = Case("gpt2_tied", inner_tiles=2, vocabulary_tiles=True, freezing=((2, 1),), steps=3)
CASES = (
    (replace(BASE, inner_tiles=4, freezing=FREEZING, steps=4), Layout(2, 1)),
    (replace(BASE, freezing=FREEZING, steps=4), grouped(2, 1, 2)),
    (replace(BASE, family="bert_classification", dtype="bfloat16", freezing=THAWING, steps=4), grouped(1, 2, 2)),
    (replace(BASE, state_ranges=3), grouped(1, 2, 2, shard="step")),
)
MORE = (
    (replace(BASE, family="llama", dtype="mixed_bfloat16"), grouped(2, 1, 2, 1, "gpipe")),
    (replace(BASE, family="gpt2_untied", dtype="float64", inner_tiles=4, activation_checkpointing=True), grouped(1, 1, 4)),
    (replace(BASE, family="llama_tied", cells=(6, 5, 5), freezing=((3, 1),)), grouped(2, 1, 2)),
    (replace(BASE, state_ranges=3, freezing=((2, 1), (3, 0))), grouped(1, 3, 2, shard="use")),
    (replace(BASE, state_ranges=3, cells=(6, 5, 5)), grouped(1, 2, 2, shard="step")),
)
"""A tied matrix in one stage, in two, and divided among a group; frozen and thawed; every type; shares of ranges; cells."""


def _name(value: Any) -> str:
    if not isinstance(value, Case):
        return str(value)
    return f"{value.family}-{value.dtype}-{value.inner_tiles}-cells{value.cells}"


@pytest.mark.parametrize(("case", "layout"), [*CASES, *(pytest.param(*row, marks=pytest.mark.wide) for row in MORE)], ids=_name)
def test_a_shape_has_the_bits_of_a_plain_loop_over_tiles_of_the_vocabulary(
    case: Case, layout: Layout, warm_workers: WarmWorkers
) -> None:
    assert not differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)]))
