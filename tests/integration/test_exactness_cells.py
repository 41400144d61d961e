"""Token cells are numerics and slices placement: every shape, schedule and grouping of cells has the bits of a plain loop over
the unsplit model that computes the same cells (docs/protocols.md 1.21)."""

from dataclasses import replace
from typing import Any

import pytest

from frostline_contract.schedules import BUILT_IN, Schedule
from tests.exact_cases import FREEZING, NEVER, THAWING, Case, oracle_trace, without_checkpointing
from tests.hand_made_plans import Layout, Segment, run_series
from tests.integration.test_exactness import differences
from tests.oracle.models import TOKENS
from tests.simulated_kills import kill_over_simulated_nccl
from tests.simulated_members import run_simulated
from tests.simulated_nccl import Network
from tests.split_backwards import split_1f1b
from tests.warm_workers import WarmWorkers
from tests.wide_rows import all_wide, whole_table

THREE, UNEVEN, LONG = (6, 5, 5), (1, 9, 2, 4), (100, 91, 65)
EACH = {THREE: (1, 1, 1), UNEVEN: (1, 1, 1, 1)}
SOME = {THREE: (1, 2), UNEVEN: (2, 1, 1)}
ALL: dict[tuple[int, ...], tuple[int, ...]] = {THREE: (), UNEVEN: ()}

LONG_CASES = (
    (Case("gpt2_tied", cells=LONG, tokens=256, freezing=((2, 3),), steps=2), Layout(2, 1, slices=(1, 2))),
    (Case("llama", cells=LONG, tokens=256, freezing=((2, 2),), steps=2), Layout(2, 1, schedule="zb_h1", slices=(1, 1, 1))),
)
"""Long sequences, where the embedding and, from step 2 on, a frozen prefix compute whole sequences. The lengths are uneven, since
a prefix in cells of 64 tokens, or of 16, has the whole's bits at this width on a CPU."""
CASES = (
    (Case("gpt2_tied", cells=THREE), Layout(4, 1, slices=EACH[THREE])),
    (Case("llama", "bfloat16", cells=UNEVEN, freezing=THAWING), Layout(2, 2, schedule="gpipe", slices=SOME[UNEVEN])),
    (Case("llama_tied", cells=UNEVEN), Layout(2, 1, 2, "interleaved_1f1b", slices=EACH[UNEVEN])),
    (Case("gpt2_tied", cells=UNEVEN, freezing=THAWING), Layout(2, 1, 2, "v_min", slices=SOME[UNEVEN])),
    (Case("llama", cells=THREE, freezing=((2, 1), (3, 3)), steps=3), Layout(2, 1, 2, "v_half", slices=EACH[THREE])),
    *LONG_CASES,
)
MORE_CASES = (
    (Case("gpt2_tied", cells=THREE), Layout(1, 1)),
    (Case("gpt2_untied", "mixed_bfloat16", cells=THREE, freezing=THAWING), Layout(3, 1, slices=SOME[THREE])),
    (Case("llama", "mixed_bfloat16", cells=THREE), Layout(3, 1, schedule="zb_h1", slices=EACH[THREE])),
)
"""With those above: both families, three types, ties, padding, dropout, freezing and thawing, every schedule, every grouping."""


def everything() -> list[tuple[Case, Layout]]:
    """Return the full product over small models."""
    shapes = (Layout(1, 1), Layout(4, 1), Layout(2, 2, schedule="gpipe"), Layout(1, 3), Layout(3, 1),
              Layout(2, 1, 2, "interleaved_1f1b"), Layout(2, 2, 2, "gpipe"), Layout(4, 1, schedule="zb_h1"),
              Layout(2, 2, schedule="zb_h2"), Layout(2, 1, 2, "zb_v"),
              Layout(2, 1, 2, "v_half"), Layout(2, 1, 2, "v_min"))  # fmt: skip
    variants = (Case("", "float32"), Case("", "float64", optimizer="sgd"), Case("", "bfloat16", dropout=0.0),
                Case("", "mixed_bfloat16"), Case("", "bfloat16", activation_checkpointing=True))  # fmt: skip
    return [
        (replace(variant, family=family, freezing=history, cells=cells), replace(shape, slices=grouping[cells]))
        for family in ("gpt2_tied", "gpt2_untied", "llama", "llama_tied")
        for variant in variants
        for history in (NEVER, ((1, 3),), FREEZING, THAWING)
        for cells in (THREE, UNEVEN)
        for shape in shapes
        for grouping in (EACH, SOME, ALL)
    ]


def _name(value: Any) -> str:
    if isinstance(value, Layout):
        return f"pp{value.pp_degree}_dp{value.dp_degree}_v{value.virtual_stages}_{value.schedule}_slices{len(value.slices) or 1}"
    history = "".join(f"_{point}at{first}" for first, point in value.freezing)
    of = f"of{value.tokens}" if value.tokens != TOKENS else ""
    again = "-again" if value.activation_checkpointing else ""
    return f"{value.family}-{value.dtype}-cells{len(value.cells)}{of}-freeze{history or '_never'}{again}"


@pytest.mark.parametrize(("case", "layout"), [*CASES, *all_wide(*MORE_CASES)], ids=_name)
def test_a_shape_has_the_bits_of_a_plain_loop_over_cells(
    case: Case, layout: Layout, warm_workers: WarmWorkers, combination: Any
) -> None:
    found = differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)]))
    combination(f"{layout}  cells {case.cells}  {case}", "DIFFERENT" if found else "equal bits")
    assert not found


@pytest.mark.wide
@pytest.mark.parametrize(("case", "layout"), whole_table(everything), ids=_name)
def test_every_combination_has_the_bits_of_a_plain_loop_over_cells(
    case: Case, layout: Layout, warm_workers: WarmWorkers, combination: Any
) -> None:
    found = differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)]))
    combination(f"{layout}  cells {case.cells}  {case}", "DIFFERENT" if found else "equal bits")
    assert not found


def test_slices_change_at_a_reshape_and_no_bit_does(warm_workers: WarmWorkers) -> None:
    """One segment differs from the one before it in its slices alone; others in degrees, schedule and bounds too."""
    case = Case("gpt2_tied", cells=UNEVEN, freezing=((4, 2),), activation_checkpointing=True, steps=6)
    tour = [
        Segment(Layout(4, 1, slices=EACH[UNEVEN]), 1),
        Segment(Layout(4, 1, slices=SOME[UNEVEN]), 2),
        Segment(Layout(2, 2, schedule="zb_h2", slices=(1, 3)), 3),
        Segment(Layout(3, 1, slices=EACH[UNEVEN]), 5),  # frozen from step 4 on: a plan made before the freeze goes on
        Segment(Layout(2, 1, slices=ALL[UNEVEN]), 6, freeze_point=2),
    ]
    runs = run_series(warm_workers, case, tour)
    expected = oracle_trace(without_checkpointing(case)).losses
    assert differences(case, runs[:2]) == []
    assert [list(run.losses.values()) for run in runs[2:]] == [expected[:5], expected[:3]]


def test_slices_with_split_backwards_have_the_bits_of_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over NCCL's rules: gradients of weights come later, from graphs that were already walked for their keys' gradients."""
    monkeypatch.setitem(BUILT_IN, "split", Schedule(lambda *shape: split_1f1b(*shape[:4], 2, *shape[4:]), takes_slices=True))
    case, network = Case("llama", cells=THREE, dropout=0.0, steps=4), Network()
    try:
        runs = run_simulated(case, Layout(2, 2, schedule="split", slices=EACH[THREE]), network)
    finally:
        network.close()
    assert differences(case, runs) == []


@pytest.mark.wide
def test_a_death_with_slices_under_way_changes_no_bit() -> None:
    """The survivors go on in one slice, with other degrees; the step is computed again."""
    case = Case("gpt2_tied", cells=THREE, dropout=0.0, freezing=((2, 1),), steps=4)
    assert kill_over_simulated_nccl(case, Layout(2, 2, slices=EACH[THREE]), 3, 1, "exchange") == []


def test_cells_are_the_whole_sequence_to_rounding() -> None:
    """Compare the loop over cells with that over whole sequences in float64; a missing token would change sums by hundredths."""
    case = Case("gpt2_tied", "float64", NEVER, dropout=0.0, steps=1)
    whole, cells = oracle_trace(case), oracle_trace(replace(case, cells=UNEVEN))
    assert cells.losses == pytest.approx(whole.losses, rel=1e-12)
    assert cells.unit_gradient_norms[0] == pytest.approx(whole.unit_gradient_norms[0], rel=1e-10)
