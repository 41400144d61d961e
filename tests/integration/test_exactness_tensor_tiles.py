"""Tensor tiles are numerics: every shape has the bits of a plain loop over the unsplit model that computes the same tiles
(docs/protocols.md 1.23)."""

from dataclasses import replace
from typing import Any

import pytest

from tests.exact_cases import FREEZING, NEVER, THAWING, Case
from tests.hand_made_plans import Layout, Segment, run_series
from tests.integration.test_exactness import differences
from tests.warm_workers import WarmWorkers
from tests.wide_rows import whole_table

CASES = (
    (Case("vit", inner_tiles=4), Layout(1, 1)),
    (Case("bert_classification", "bfloat16", inner_tiles=4, freezing=THAWING, steps=4), Layout(2, 1)),
    (Case("gpt2_tied", "float64", inner_tiles=4, steps=4), Layout(1, 3)),
    (Case("llama", "mixed_bfloat16", inner_tiles=2, freezing=NEVER, activation_checkpointing=True, steps=4), Layout(2, 1)),
    (Case("gpt2_tied", inner_tiles=2, hidden_tiles=2, freezing=THAWING, steps=4), Layout(1, 1)),
    (Case("bert_classification", "bfloat16", inner_tiles=2, hidden_tiles=4, freezing=THAWING, steps=4), Layout(2, 1)),
)
"""Every family and type, with dropout and clipping; freezing and thawing, a recomputed forward, pipelines and replicas; hidden
tiles in both orders of a weight's dimensions."""
GRIDS = ((2, 1), (4, 1), (1, 2), (2, 2))
"""(inner, hidden) tiles."""


def everything() -> list[tuple[Case, Layout]]:
    """Return the product of families, types, tiles, freezing and shapes; of freezing with hidden tiles one history only."""
    variants = (Case("", "float32"), Case("", "float64", optimizer="sgd"), Case("", "bfloat16", dropout=0.0),
                Case("", "mixed_bfloat16"), Case("", "float32", clip_norm=None, activation_checkpointing=True))  # fmt: skip
    return [
        (replace(variant, family=family, freezing=history, inner_tiles=inner, hidden_tiles=hidden), layout)
        for family in ("vit", "bert_classification", "bert_question_answering", "gpt2_tied", "gpt2_untied", "llama", "llama_tied")
        for inner, hidden in GRIDS
        if not (family.startswith("llama") and inner == 4)  # only two key-value heads
        for variant in variants
        for history in ((NEVER, FREEZING, THAWING) if hidden == 1 else (THAWING,))
        for layout in (Layout(1, 1), Layout(4, 1), Layout(2, 2, schedule="gpipe"), Layout(2, 1, 2, "interleaved_1f1b"))
    ]


def _grid(case: Case) -> str:
    return f"{case.inner_tiles}x{case.hidden_tiles}" if case.hidden_tiles > 1 else str(case.inner_tiles)


def _name(value: Any) -> str:
    if isinstance(value, Layout):
        return f"pp{value.pp_degree}_dp{value.dp_degree}_v{value.virtual_stages}_{value.schedule}"
    history = "".join(f"_{point}at{first}" for first, point in value.freezing)
    again = "-again" if value.activation_checkpointing else ""
    return f"{value.family}-{value.dtype}-tiles{_grid(value)}-freeze{history or '_never'}{again}"


@pytest.mark.parametrize(("case", "layout"), CASES, ids=_name)
def test_a_shape_has_the_bits_of_a_plain_loop_over_tiles(
    case: Case, layout: Layout, warm_workers: WarmWorkers, combination: Any
) -> None:
    found = differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)]))
    combination(f"{layout}  tiles {_grid(case)}  {case}", "DIFFERENT" if found else "equal bits")
    assert not found


@pytest.mark.wide
@pytest.mark.parametrize(("case", "layout"), whole_table(everything), ids=_name)
def test_every_combination_has_the_bits_of_a_plain_loop_over_tiles(
    case: Case, layout: Layout, warm_workers: WarmWorkers, combination: Any
) -> None:
    found = differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)]))
    combination(f"{layout}  tiles {_grid(case)}  {case}", "DIFFERENT" if found else "equal bits")
    assert not found
