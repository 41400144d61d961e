"""Groups with levels (`placement.tp_depth`): the hidden width of matrices is cut as well. Every shape has one worker's bits, in
pipelines and replicas, with state shared out or not, through reshapes, freezes and failures (docs/protocols.md 1.28)."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from frostline_controller.recovery.facts import GoOn
from tests.exact_cases import NUM_UNITS, THAWING, Case
from tests.hand_made_plans import Layout, Segment, grouped, run_series
from tests.integration.test_buddies import check_copies
from tests.integration.test_exactness import differences
from tests.integration.test_pieces import whole
from tests.integration.test_recovery_moves import CASE, Outcome, assert_undisturbed, kill, run_with_faults
from tests.integration.test_reshape_moves import lone_run, losses_of
from tests.simulated_members import run_simulated
from tests.simulated_nccl import Network
from tests.warm_workers import WarmWorkers
from tests.wide_rows import all_wide, whole_table

EXACT = [
    (Case("gpt2_tied", inner_tiles=2, hidden_tiles=2, freezing=((2, 1), (3, 3)), steps=4), grouped(1, 1, 2, depth=2)),
    (Case("llama", "mixed_bfloat16", inner_tiles=2, hidden_tiles=4, freezing=((2, 1),), steps=3), grouped(2, 1, 1, depth=2)),
    # Each tile's state is in ranges, shared out over replicas: columns x depth x replicas, the 3-D of the papers.
    (
        Case("bert_classification", inner_tiles=2, hidden_tiles=2, state_ranges=2, freezing=((2, 3), (3, 0)), steps=3),
        grouped(1, 2, 2, depth=2, shard="use"),
    ),
]
MORE_EXACT = [
    (Case("vit", "bfloat16", inner_tiles=4, hidden_tiles=2, freezing=THAWING, steps=4), grouped(1, 1, 4, depth=2)),
    (Case("gpt2_untied", "float64", hidden_tiles=4, activation_checkpointing=True, steps=3), grouped(1, 2, 1, depth=4)),
    (Case("gpt2_tied", inner_tiles=2, hidden_tiles=2, cells=(6, 5, 5), steps=3), grouped(2, 1, 2, slices=(2, 1), depth=2)),
    (Case("gpt2_tied", inner_tiles=2, hidden_tiles=2, freezing=((3, 2),), steps=3), grouped(2, 1, 1, 2, "zb_v", depth=2)),
]


@pytest.mark.parametrize(("case", "layout"), [*EXACT, *all_wide(*MORE_EXACT)], ids=str)
def test_a_shape_with_levels_has_the_bits_of_a_plain_loop_over_tiles(
    case: Case, layout: Layout, warm_workers: WarmWorkers
) -> None:
    assert differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)])) == []


def table() -> list[tuple[Case, Layout]]:
    """Return every shape of (pp, dp, columns, levels, shard) with levels and up to eight workers, in two families and types."""
    cases = (
        Case("gpt2_tied", inner_tiles=2, hidden_tiles=4, state_ranges=4, clip_norm=0.1, freezing=((2, 1), (3, 3)), steps=3),
        Case("bert_classification", "mixed_bfloat16", inner_tiles=2, hidden_tiles=4, state_ranges=4, freezing=THAWING, steps=4),
    )
    shapes = [
        grouped(pp, dp, columns, depth=levels, shard=shard)
        for pp in (1, 2, 4)
        for dp in (1, 2, 4)
        for columns in (1, 2)
        for levels in (2, 4)
        for shard in ("none", "step", "use")
        if pp * dp * columns * levels <= 8 and (dp > 1 or shard == "none")
    ]
    return [(case, shape) for case in cases for shape in shapes]


@pytest.mark.wide
@pytest.mark.parametrize(("case", "layout"), whole_table(table), ids=str)
def test_every_shape_with_levels_has_the_bits_of_a_plain_loop_over_tiles(
    case: Case, layout: Layout, warm_workers: WarmWorkers
) -> None:
    assert differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)])) == []


def test_levels_over_nccls_rules_end_with_the_same_bits() -> None:
    """Devices run behind their hosts; each member has communicators along its columns, its levels and the whole group."""
    case = Case("gpt2_tied", dropout=0.0, inner_tiles=2, hidden_tiles=2, freezing=((2, 1),), steps=2)
    network = Network(run_ahead=True)
    try:
        assert differences(case, run_simulated(case, grouped(1, 1, 2, depth=2), network)) == []
    finally:
        network.close()


TRAVELLING = Case("gpt2_tied", freezing=((3, 1), (5, 3)), steps=6, inner_tiles=2, hidden_tiles=2, state_ranges=2)
JOURNEY = (
    Segment(Layout(1, 1), 1),
    Segment(grouped(1, 1, 2, depth=2), 2, domains=(0, 0, 1, 1)),
    Segment(grouped(1, 2, 1, depth=2, workers=(2, 0, 3, 1), shard="step"), 3),
    # A step after a freeze, with one joiner in place of two leavers.
    Segment(grouped(1, 1, 2, workers=(4, 0)), 4, 1),
    Segment(grouped(2, 1, 1, depth=2, workers=(4, 1, 2, 0)), 5, 1),
    Segment(grouped(1, 2, 2, workers=(0, 4, 1, 3), shard="use"), 6, 3),
)
"""One worker; columns and levels; levels and replicas, state shared out; columns; a pipeline of levels; columns and replicas."""


def test_reshapes_between_columns_levels_and_replicas_change_no_bit(warm_workers: WarmWorkers) -> None:
    alone = lone_run(warm_workers, TRAVELLING)
    runs = run_series(warm_workers, TRAVELLING, JOURNEY)
    assert losses_of(runs) == alone.losses
    assert whole(runs) == alone.units
    assert {run.digest for run in runs if run.units} == {alone.digest}
    assert {run.guard for run in runs if run.units} == {alone.guard}, "each sample is scored once"
    check_copies(runs, "after 2", at_least=2)


def test_a_checkpoint_of_levels_resumes_in_any_shape(warm_workers: WarmWorkers, tmp_path: Path) -> None:
    case = replace(TRAVELLING, steps=4, freezing=((3, 1),))
    alone = lone_run(warm_workers, case)
    levels = Segment(grouped(1, 1, 2, depth=2), 3, domains=(0, 1, 0, 1))
    runs = run_series(warm_workers, case, [levels], str(tmp_path), checkpoint_step=2)
    (folder,) = {run.checkpoint for run in runs}
    ranges, tiles, _ = case.cut
    assert {run.covered[3] for run in runs} == {(True,) * NUM_UNITS * ranges * (1 + tiles)}
    # What no tile cuts and a tile of its own; of the other tiles it is the buddy of one.
    assert all(len(run.tags) == NUM_UNITS * ranges * 3 for run in runs)
    after = Segment(grouped(2, 1, 2), case.steps, 1)
    resumed = run_series(warm_workers, case, [after], str(tmp_path), resume=(folder, 2))
    assert whole(resumed) == alone.units and {run.digest for run in resumed} == {alone.digest}


# ---- failures, by real workers

GRID = replace(CASE, inner_tiles=2, hidden_tiles=2)


@pytest.fixture(scope="module")
def undisturbed(warm_workers: WarmWorkers, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return the run on one worker."""
    alone = cache(lambda: run_with_faults(warm_workers, tmp_path_factory.mktemp("alone"), [Layout(1, 1)], case=GRID))
    return alone()


SQUARE = grouped(1, 1, 2, depth=2)
EAST_AND_WEST, NORTH_AND_SOUTH = ("east", "west") * 2, ("north", "north", "south", "south")
"""Nodes of four members: each has one level of both columns, or one column of both levels."""


@pytest.mark.parametrize("phase", ["schedule", pytest.param("seen", marks=pytest.mark.wide)])
def test_a_group_that_loses_a_member_loses_no_step(
    phase: str, undisturbed: Outcome, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """The others block in sums and gathers; a buddy in the other node has the lost tile."""
    layouts, faults = (SQUARE, Layout(3, 1)), [kill(3, 8, phase)]
    ended = run_with_faults(warm_workers, tmp_path, layouts, faults, GRID, nodes=EAST_AND_WEST, dying=range(4))
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_undisturbed(ended, undisturbed)


@pytest.mark.wide
@pytest.mark.parametrize(
    ("nodes", "after"),
    [(EAST_AND_WEST, grouped(1, 1, 1, depth=2)), (NORTH_AND_SOUTH, grouped(1, 1, 2))],
    ids=["as two levels", "as two columns"],
)
def test_a_group_that_loses_a_node_goes_on_as_half_of_it(
    nodes: tuple[str, ...], after: Layout, undisturbed: Outcome, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    lost = [number for number, node in enumerate(nodes) if node == nodes[1]]
    layouts, faults = (SQUARE, Layout(3, 1), after), [kill(number, 8, "norms") for number in lost]
    ended = run_with_faults(warm_workers, tmp_path, layouts, faults, GRID, nodes=nodes, dying=range(4))
    assert all(isinstance(one, GoOn) for one in ended.run.answers) and ended.run.answers
    assert_undisturbed(ended, undisturbed)
