"""Pieces by tile: a member of a group holds its tiles' weights, gradients and moments, at the bits of one worker, through
reshapes, freezes and failures (docs/protocols.md 1.22 and 1.25)."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from frostline_contract.pieces import RANGE_ALIGNMENT
from frostline_contract.usage import Held, Way
from frostline_controller.recovery.facts import GoBack, GoOn
from frostline_trainer.step.local_shards import weight_bytes
from frostline_trainer.step.parts import parts_of
from tests.exact_cases import FREEZING, NUM_UNITS, THAWING, Case, build_case
from tests.hand_made_plans import Layout, Segment, grouped, run_series
from tests.integration.test_buddies import check_copies
from tests.integration.test_exactness import differences
from tests.integration.test_exactness_tensor_groups import Undisturbed, undisturbed
from tests.integration.test_pieces import whole
from tests.integration.test_recovery_moves import CASE, assert_undisturbed, kill, run_with_faults
from tests.integration.test_reshape_moves import lone_run, losses_of
from tests.warm_workers import WarmWorkers
from tests.wide_rows import wide_rows

__all__ = ["undisturbed"]  # a fixture

TILED, FLOAT = replace(CASE, inner_tiles=2), 4


@cache
def sizes_of(case: Case) -> tuple[int, int]:
    """Return the bytes of all weights and buffers in float32: of what no tile cuts, and of all tiles."""
    context = build_case(case)
    table, units = context.pieces, context.cut.units
    tiles = [piece for piece in range(table.count) if table.tile_of(piece) is not None]
    parts = [part for piece in tiles for part in parts_of(table, piece, units[table.unit_of(piece)])]
    tiled = sum(FLOAT * (part.high - part.low) for part in parts)
    return sum(map(weight_bytes, units)) - tiled, tiled


@pytest.mark.parametrize("degree", wide_rows([2, 4], {4}))
def test_a_member_of_a_group_holds_a_part_of_what_tiles_cut(degree: int, warm_workers: WarmWorkers) -> None:
    case = Case("gpt2_untied", inner_tiles=4, freezing=(), steps=2)
    common, tiled = sizes_of(case)
    (alone,) = run_series(warm_workers, case, [Segment(Layout(1, 1), case.steps)], score=False)
    assert alone.resident[Held.WEIGHTS] == common + tiled
    runs = run_series(warm_workers, case, [Segment(grouped(1, 1, degree), case.steps)], score=False)
    assert {run.resident[Held.WEIGHTS] for run in runs} == {common + tiled // degree}
    for kind in (Held.MOMENTS, Held.GRADIENTS):  # beside step counts and padding
        share = alone.resident[kind] * (common + tiled // degree) / (common + tiled)
        assert all(run.resident[kind] == pytest.approx(share, rel=0.05) for run in runs), kind
    assert all(Way.BUDDIES not in run.sent for run in runs)


@pytest.mark.parametrize("shard", ["step", "use"])
def test_replicas_of_groups_hold_their_part_of_each_members_tiles(shard: str, warm_workers: WarmWorkers) -> None:
    """Of what tiles cut 1 / (2 x 2) of the moments, and with `use` of the weights, and of the rest one half; all members together
    hold the tiles once, and the rest once for each member of a group."""
    case = Case("gpt2_untied", inner_tiles=4, state_ranges=4, freezing=(), steps=2)
    common, tiled = sizes_of(case)
    runs = run_series(warm_workers, case, [Segment(grouped(1, 2, 2, shard=shard), case.steps)], score=False)
    part = common / 2 + tiled / 4
    rounding = 3 * NUM_UNITS * FLOAT * RANGE_ALIGNMENT  # of what no tile cuts, and of two tiles
    assert rounding < 0.1 * part
    held = {kind: [run.resident[kind] for run in runs] for kind in (Held.WEIGHTS, Held.MOMENTS)}
    if shard == "use":
        assert all(abs(one - part) <= rounding for one in held[Held.WEIGHTS])
        assert sum(held[Held.WEIGHTS]) == 2 * common + tiled
    else:
        assert set(held[Held.WEIGHTS]) == {common + tiled // 2}, "weights of other replicas' ranges are copies"
    context, placement = build_case(case), Layout(1, 2, tp_columns=2, shard=shard).placement(0)
    table, units = context.pieces, context.cut.units
    for worker, moments in zip(placement.workers, held[Held.MOMENTS], strict=True):
        parts = [
            part for piece in placement.pieces_of(table, worker) for part in parts_of(table, piece, units[table.unit_of(piece)])
        ]
        assert moments == sum(FLOAT * (2 * (one.high - one.low) + 1) for one in parts), "two numbers an element, a count a part"
        assert abs(moments - 2 * part) <= 2 * rounding + FLOAT * len(parts)


def test_frozen_blocks_are_whole_and_are_freed_when_they_learn_again(warm_workers: WarmWorkers) -> None:
    case = Case("bert_classification", inner_tiles=2, freezing=((2, 4), (3, 1)), steps=3)
    held = {}
    for last in (1, 2, 3):
        runs = run_series(warm_workers, replace(case, steps=last), [Segment(grouped(1, 1, 2), last)], score=False)
        (held[last],) = {run.resident[Held.WEIGHTS] for run in runs}
    common, tiled = sizes_of(replace(case, steps=1))
    assert held[1] == held[3] == common + tiled // 2
    assert held[2] == common + tiled // 2 + tiled // 2 * 3 // 6, "three of six blocks are frozen"


TRAVELS = {
    "freezing": (
        FREEZING,
        (
            Segment(grouped(1, 1, 2), 1),
            Segment(grouped(2, 1, 2, workers=(2, 0, 3, 1)), 3, 1, domains=(0, 1, 0, 1)),
            Segment(grouped(1, 1, 4, workers=(3, 1, 4, 0)), 4, 3, domains=(0, 0, 1, 1)),
            Segment(Layout(1, 2, workers=(4, 2)), 6, 3),
        ),
    ),
    "thawing": (
        THAWING,
        (
            Segment(grouped(1, 2, 2), 1, 5),
            Segment(grouped(1, 1, 4), 3, 1),
            Segment(Layout(2, 1, workers=(1, 2)), 4, 0),
            Segment(grouped(2, 1, 2, 2, "interleaved_1f1b"), 6, 0, domains=(0, 1, 1, 0)),
        ),
    ),
}
"""Groups of 1, 2 and 4, with a pipeline, replicas and buddies, in which blocks freeze and learn again."""


@pytest.mark.parametrize("name", wide_rows(TRAVELS, {"thawing"}))
def test_reshapes_between_groups_change_no_bit_whatever_freezes(name: str, warm_workers: WarmWorkers) -> None:
    freezing, journey = TRAVELS[name]
    case = Case("gpt2_tied", inner_tiles=4, freezing=freezing, steps=6)
    alone = lone_run(warm_workers, case)
    runs = run_series(warm_workers, case, journey)
    assert losses_of(runs) == alone.losses
    assert whole(runs) == alone.units
    assert {run.digest for run in runs if run.units} == {alone.digest}
    assert {run.guard for run in runs if run.units} == {alone.guard}


@pytest.mark.parametrize(
    ("layout", "domains"),
    [(grouped(1, 1, 2), (0, 1)), (grouped(2, 1, 2), (0, 0, 1, 1)), (grouped(1, 2, 2), (0, 0, 0, 1))],
    ids=["the other of a group", "another group", "replicas in part"],
)
def test_a_tile_without_another_owner_elsewhere_has_a_buddy(
    layout: Layout, domains: tuple[int, ...], warm_workers: WarmWorkers
) -> None:
    case = Case("gpt2_tied", inner_tiles=2, freezing=((2, 1), (3, 3)), steps=4)
    runs = run_series(warm_workers, case, [Segment(layout, case.steps, domains=domains)])
    assert differences(case, runs) == []
    assert {run.covered[step] for run in runs for step in run.covered} == {(True,) * (NUM_UNITS * 3)}
    check_copies(runs, f"after {case.steps}")
    check_copies(runs, "after 2")


def test_a_lost_member_whose_tiles_a_replica_has_costs_no_step(
    undisturbed: Undisturbed, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    layouts = (grouped(1, 2, 2), Layout(3, 1))
    ended = run_with_faults(warm_workers, tmp_path, layouts, [kill(3, 8, "schedule")], TILED, dying=range(4))
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_undisturbed(ended, undisturbed(1))


def test_tiles_that_nobody_else_has_take_the_run_back(
    undisturbed: Undisturbed, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """Without a buddy: from a checkpoint of groups the run goes on as a pipeline, to the same bits."""
    layouts = (grouped(1, 1, 2), Layout(1, 1, workers=(0,)))
    ended = run_with_faults(warm_workers, tmp_path, layouts, [kill(1, 8, "schedule")], TILED, dying=range(2))
    (answer,) = ended.run.answers
    assert isinstance(answer, GoBack)
    assert list(answer.missing) == [3 * unit + 2 for unit in range(NUM_UNITS)], "the second tile of each unit"
    assert ended.outcome.digest == undisturbed(1).outcome.digest
