"""Groups that divide a micro-batch's samples (`training.tensor_tiles.rows`, `placement.tensor_rows`): the bits of a plain loop
over row tiles, whoever computes which samples (docs/protocols.md 1.27)."""

from dataclasses import replace
from pathlib import Path

import pytest

from frostline_controller.recovery.facts import GoOn
from tests.exact_cases import Case
from tests.hand_made_plans import Layout, Segment, grouped, run_series
from tests.integration.test_exactness import differences
from tests.integration.test_pieces import whole
from tests.integration.test_recovery_moves import CASE, assert_undisturbed, kill, run_with_faults
from tests.integration.test_reshape_moves import losses_of
from tests.warm_workers import WarmWorkers
from tests.wide_rows import all_wide

BASE = Case("gpt2_tied", inner_tiles=2, row_tiles=2, freezing=((2, 1),), steps=3)


def divided(pp_degree: int, dp_degree: int, *rest: object, slices: tuple[int, ...] = (), shard: str = "none") -> Layout:
    return grouped(pp_degree, dp_degree, 2, *rest, slices=slices, shard=shard, tensor_rows="split")


EXACT = [
    (replace(BASE, freezing=((2, 1), (3, 3)), steps=4), Layout(2, 1)),
    (BASE, divided(1, 1)),
    (replace(BASE, family="bert_classification", dtype="bfloat16", freezing=((2, 3), (3, 0))), divided(2, 1, 1, "gpipe")),
    (replace(BASE, state_ranges=3), divided(1, 2, shard="step")),
    (replace(BASE, family="llama", dtype="mixed_bfloat16", activation_checkpointing=True), divided(2, 1, 2, "interleaved_1f1b")),
]
MORE_EXACT = [
    (replace(BASE, family="vit", dtype="float64"), divided(1, 2)),
    (BASE, grouped(2, 1, 2)),
    (replace(BASE, state_ranges=3), divided(1, 1)),
    (replace(BASE, family="bert_classification", dtype="bfloat16", state_ranges=3), divided(2, 2, shard="use")),
    (replace(BASE, vocabulary_tiles=True), divided(2, 1, 2, "zb_v")),
    (replace(BASE, cells=(6, 5, 5)), divided(2, 1, slices=(2, 1))),
    (replace(BASE, family="bert_question_answering", inner_tiles=4, freezing=((2, 4),)), divided(3, 1)),
    (replace(BASE, family="gpt2_untied", freezing=((2, 7), (3, 0))), divided(2, 1, 1, "zb_h1")),
]


@pytest.mark.parametrize(("case", "layout"), [*EXACT, *all_wide(*MORE_EXACT)], ids=str)
def test_a_shape_has_the_bits_of_a_plain_loop_over_row_tiles(case: Case, layout: Layout, warm_workers: WarmWorkers) -> None:
    assert differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)])) == []


def test_a_lost_member_that_had_half_of_the_samples_costs_no_step(warm_workers: WarmWorkers, tmp_path: Path) -> None:
    """The other member blocks in a gather of samples; it is the buddy of the lost one's tiles, and goes on with all samples."""
    case, folders = replace(CASE, inner_tiles=2, row_tiles=2), (tmp_path / "alone", tmp_path / "pair")
    for folder in folders:
        folder.mkdir()
    alone = run_with_faults(warm_workers, folders[0], [Layout(1, 1)], case=case)
    layouts = (divided(1, 1), Layout(1, 1, workers=(0,)))
    ended = run_with_faults(
        warm_workers, folders[1], layouts, [kill(1, 8, "schedule")], case, nodes=("north", "south"), dying=range(2)
    )
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_undisturbed(ended, alone)


JOURNEY = (
    Segment(Layout(1, 1), 1),
    Segment(divided(1, 1), 2),
    Segment(grouped(2, 1, 2, workers=(2, 0, 3, 1)), 3),
    Segment(replace(divided(2, 1), workers=(3, 0, 1, 2)), 5, 1),
    Segment(Layout(1, 2, workers=(4, 1)), 6, 3),
)
"""One worker, samples divided, whole in a pipeline, divided in the same one, and no group again; freezes at steps 3 and 5."""


def test_reshapes_between_divided_and_whole_samples_change_no_bit(warm_workers: WarmWorkers) -> None:
    """With noise on what leaves the frozen units, and a head that computes some tokens at a time."""
    case = replace(BASE, freezing=((3, 1), (5, 3)), steps=6, loss_chunk_tokens=3, feature_noise=0.05)
    (alone,) = run_series(warm_workers, case, [Segment(Layout(1, 1), case.steps)])
    runs = run_series(warm_workers, case, JOURNEY)
    assert losses_of(runs) == alone.losses
    assert whole(runs) == alone.units
    assert {run.guard for run in runs if run.units} == {alone.guard}, "each sample is scored once"
