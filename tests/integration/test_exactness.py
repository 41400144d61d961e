"""Placement changes no bit: every shape has the bits of a plain loop over the unsplit Hugging Face model
(docs/protocols.md 1.11)."""

from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor

from tests.engine_member import Run, digest_of
from tests.exact_cases import FREEZING, LEAVES, NEVER, NUM_UNITS, THAWING, Case, oracle_trace, without_checkpointing
from tests.hand_made_plans import Layout, Segment, run_series
from tests.warm_workers import WarmWorkers
from tests.wide_rows import whole_table

LAYOUTS = (
    Layout(4, 1),
    Layout(2, 2),
    Layout(1, 4),
    Layout(3, 1, 1, "gpipe"),
    Layout(1, 3),
    Layout(2, 1, 2, "interleaved_1f1b"),
)
FURTHER_LAYOUTS = (Layout(1, 1), Layout(2, 2, 2, "interleaved_1f1b"), Layout(2, 1, 2, "gpipe"), Layout(3, 1), Layout(1, 2),
                   Layout(4, 1, 1, "zb_h1"), Layout(2, 2, 1, "zb_h2"), Layout(3, 1, 2, "v_half"))  # fmt: skip
FAMILIES = ("vit", "bert_classification", "bert_question_answering", "gpt2_tied", "gpt2_untied", "llama")
FURTHER_FAMILIES = ("bert_regression", "llama_tied")
VARIANTS = (
    Case("", "float32"),
    Case("", "float64", freezing=THAWING, optimizer="sgd", clip_norm=0.05),
    Case("", "bfloat16", clip_norm=None, dropout=0.0),
    Case("", "mixed_bfloat16", freezing=THAWING),
)
"""Numerics, one for each type: both optimizers, effective clipping and none, dropout and none, freezing and thawing."""


def covering() -> list[tuple[Case, Layout]]:
    """Return cases with every family in every layout and in every type."""
    chosen = []
    for row, family in enumerate(FAMILIES):
        for column, layout in enumerate(LAYOUTS):
            chosen.append((replace(VARIANTS[(row + column) % 4], family=family), layout))
    chosen += [(replace(VARIANTS[0], family=family), Layout(2, 2)) for family in FURTHER_FAMILIES]
    chosen += [(replace(VARIANTS[index % 4], family="gpt2_tied"), layout) for index, layout in enumerate(FURTHER_LAYOUTS)]
    return chosen


def everything() -> list[tuple[Case, Layout]]:
    """Return the full product, with each prefix frozen from the first step as well as during the run."""
    histories = (NEVER, ((1, 1),), ((1, 3),), ((1, 5),), FREEZING, THAWING)
    return [
        (replace(variant, family=family, freezing=history), layout)
        for family in FAMILIES + FURTHER_FAMILIES
        for variant in VARIANTS
        for history in histories
        for layout in LAYOUTS + FURTHER_LAYOUTS
    ]


def differences(case: Case, runs: list[Run]) -> list[str]:
    """Return the losses, norms, weights and moments, on any member, whose bits differ from the oracle's."""
    trace = oracle_trace(without_checkpointing(case))
    expected = [_unit_digests(weights, moments) for weights, moments in zip(trace.weights, trace.moments, strict=True)]
    found, seen = [], set()
    for number, run in enumerate(runs):
        figures = (
            ("losses", run.losses, trace.losses),
            ("unit norms", run.unit_norms, trace.unit_gradient_norms),
            ("gradient norms", run.gradient_norms, trace.gradient_norms),
        )
        found += [f"worker {number}: {name}" for name, by_step, wanted in figures if list(by_step.values()) != wanted]
        for unit, held in run.units.items():
            seen.add(unit)
            names = sorted(held.keys() | expected[unit].keys())
            found += [f"worker {number}: {name}" for name in names if held.get(name) != expected[unit].get(name)]
    if seen != set(range(NUM_UNITS)):
        found.append(f"only units {sorted(seen)} were held at the end")
    if len({(run.digest, run.guard) for run in runs if run.units}) != 1:
        found.append("members differ in digest or guard score")
    return found


def _unit_digests(weights: dict[str, Tensor], moments: dict[str, dict[str, Tensor]]) -> dict[str, str]:
    digests = {name: digest_of(tensor) for name, tensor in weights.items()}
    return digests | {f"{name}|{slot}": digest_of(value) for name, slots in moments.items() for slot, value in slots.items()}


def _name(value: Any) -> str:
    """Return a test id that pytest's -k accepts."""
    if isinstance(value, Layout):
        return f"pp{value.pp_degree}_dp{value.dp_degree}_v{value.virtual_stages}_{value.schedule}"
    history = "".join(f"_{point}at{first}" for first, point in value.freezing)
    return f"{value.family}-{value.dtype}-freeze{history or '_never'}"


@pytest.mark.parametrize(("case", "layout"), covering(), ids=_name)
def test_a_shape_has_the_oracles_bits(case: Case, layout: Layout, warm_workers: WarmWorkers, combination: Any) -> None:
    runs = run_series(warm_workers, case, [Segment(layout, case.steps)])
    found = differences(case, runs)
    combination(f"{layout}  {case}", "DIFFERENT" if found else "equal bits")
    assert not found


@pytest.mark.wide
@pytest.mark.parametrize(("case", "layout"), whole_table(everything), ids=_name)
def test_every_combination_has_the_oracles_bits(case: Case, layout: Layout, warm_workers: WarmWorkers, combination: Any) -> None:
    runs = run_series(warm_workers, case, [Segment(layout, case.steps)])
    found = differences(case, runs)
    combination(f"{layout}  {case}", "DIFFERENT" if found else "equal bits")
    assert not found


@pytest.mark.parametrize("layout", LAYOUTS + FURTHER_LAYOUTS, ids=_name)
def test_shapes_that_do_not_fit_are_refused_when_planned(layout: Layout, combination: Any) -> None:
    refused = []
    for freeze_point in range(NUM_UNITS):
        trainable = NUM_UNITS - freeze_point
        if layout.shape.num_stages > trainable:
            with pytest.raises(ValueError, match=f"{layout.shape.num_stages} stages for {trainable} trainable units"):
                layout.shape.check_fits(NUM_UNITS, freeze_point, LEAVES)
            refused.append(freeze_point)
        else:
            layout.shape.check_fits(NUM_UNITS, freeze_point, LEAVES)
    words = f"freeze points {', '.join(map(str, refused))}" if refused else "none"
    combination(f"{layout}  planned over {NUM_UNITS} units", f"refused: {words}")
    assert refused == list(range(NUM_UNITS - layout.shape.num_stages + 1, NUM_UNITS))
