"""Groups whose members share the tiles of their stages (`placement.tp_degree`): the bits of one worker, in any shape, with state
shared out over replicas or not, through reshapes, freezes and failures (docs/protocols.md 1.24 and 1.25)."""

from collections.abc import Callable
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
from tests.simulated_kills import kill_over_simulated_nccl
from tests.simulated_members import run_simulated
from tests.simulated_nccl import Network
from tests.warm_workers import WarmWorkers
from tests.wide_rows import all_wide

EXACT = [
    (Case("gpt2_tied", inner_tiles=2, steps=4, freezing=((2, 1), (3, 3))), grouped(1, 1, 2)),
    # Each tile's state is in ranges, and so is the state of what no tile cuts; a member may have several tiles.
    (Case("gpt2_tied", inner_tiles=4, state_ranges=2, freezing=((2, 1),), steps=3), grouped(1, 2, 2, shard="step")),
    (Case("llama", "mixed_bfloat16", inner_tiles=2, state_ranges=3, freezing=((2, 3),), steps=3), grouped(1, 2, 2, shard="step")),
    (Case("gpt2_tied", inner_tiles=2, state_ranges=3, freezing=((2, 3), (3, 0)), steps=3), grouped(1, 3, 2, shard="use")),
    # Messages between stages cross once a group: with stages in turn on a rank, in slices of cells.
    (Case("llama", "mixed_bfloat16", inner_tiles=2, freezing=((2, 1),), steps=3), grouped(2, 1, 2, 2, "interleaved_1f1b")),
    (Case("gpt2_tied", inner_tiles=2, cells=(6, 5, 5), freezing=((2, 1), (3, 3)), steps=3), grouped(2, 1, 2, slices=(2, 1))),
]
MORE_EXACT = [
    (Case("bert_classification", "bfloat16", inner_tiles=4, freezing=THAWING, steps=4), grouped(2, 1, 2, 1, "gpipe")),
    (Case("gpt2_tied", inner_tiles=2, freezing=((3, 2),), steps=3), grouped(2, 1, 2, 2, "zb_v")),
    (Case("bert_classification", "bfloat16", inner_tiles=2, state_ranges=5, steps=3), grouped(2, 2, 2, shard="use")),
    (Case("gpt2_untied", "float64", inner_tiles=4, steps=3, activation_checkpointing=True), grouped(1, 1, 4)),
    (Case("bert_classification", "bfloat16", inner_tiles=2, state_ranges=5, steps=3), grouped(2, 2, 2, shard="step")),
]


@pytest.mark.parametrize(("case", "layout"), [*EXACT, *all_wide(*MORE_EXACT)], ids=str)
def test_a_shape_with_groups_has_the_bits_of_a_plain_loop_over_tiles(
    case: Case, layout: Layout, warm_workers: WarmWorkers
) -> None:
    assert differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)])) == []


def table() -> list[tuple[Case, Layout]]:
    """Return every shape of (pp, dp, tp, shard) with up to eight workers, in one family with float32 and in another with
    mixed types."""
    cases = (
        Case("gpt2_tied", inner_tiles=4, state_ranges=3, clip_norm=0.1, freezing=((2, 1), (3, 3)), steps=4),
        Case("bert_classification", "mixed_bfloat16", inner_tiles=4, state_ranges=4, freezing=THAWING, steps=4),
    )
    shapes = [
        grouped(pp, dp, tp, shard=shard)
        for pp in (1, 2, 3)
        for dp in (1, 2, 3)
        for tp in (1, 2, 4)
        for shard in ("none", "step", "use")[: 1 + 2 * (dp > 1)]
        if pp * dp * tp <= 8
    ]
    return [(case, shape) for case in cases for shape in shapes]


@pytest.mark.wide
@pytest.mark.parametrize(("case", "layout"), table(), ids=str)
def test_every_shape_of_groups_and_shares_has_the_plain_loops_bits(case: Case, layout: Layout, warm_workers: WarmWorkers) -> None:
    assert differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)])) == []


@pytest.mark.parametrize(
    "run_ahead", [pytest.param(False, marks=pytest.mark.wide), True], ids=["at once", "devices behind their hosts"]
)
def test_groups_over_nccls_rules_end_with_the_same_bits(run_ahead: bool) -> None:
    """Sums over tiles, messages between stages and sums over replicas, here of shares, have separate communicators; no dropout,
    since torch's generator belongs to the process."""
    case = Case("gpt2_tied", dropout=0.0, inner_tiles=2, state_ranges=2, steps=3, freezing=((2, 1),))
    network = Network(run_ahead=run_ahead)
    try:
        assert differences(case, run_simulated(case, grouped(2, 2 - run_ahead, 2, shard="step"), network)) == []
    finally:
        network.close()


@pytest.mark.wide
@pytest.mark.parametrize(("victim", "phase"), [(3, "schedule"), (0, "exchange")], ids=str)
def test_a_death_beside_a_gather_over_nccls_rules_changes_no_bit(victim: int, phase: str) -> None:
    """The member beside the victim has its share of a message, or of a tied matrix' gradient, and waits in the gather."""
    case = Case("gpt2_tied", dropout=0.0, inner_tiles=2, state_ranges=2, freezing=(), steps=4)
    assert kill_over_simulated_nccl(case, grouped(2, 1, 2), 3, victim, phase) == []


JOURNEY = (
    Segment(Layout(1, 1), 1),
    Segment(grouped(1, 1, 4), 2),
    Segment(grouped(2, 1, 2, workers=(2, 0, 3, 1)), 4),
    # A step after a freeze, with one joiner in place of two leavers.
    Segment(grouped(1, 1, 2, workers=(4, 0)), 5, 1),
    Segment(Layout(2, 1, workers=(4, 1)), 6, 3),
)
"""One worker, groups of 4 and 2 with a pipeline and without, and no group again; freezes at steps 3 and 5."""
TRAVELLING = Case("gpt2_tied", freezing=((3, 1), (5, 3)), steps=6, inner_tiles=4)


SHARING_JOURNEY = (
    Segment(Layout(1, 2, shard="step"), 1),
    Segment(grouped(1, 2, 2, workers=(2, 0, 3, 1), shard="step"), 2, domains=(0, 0, 1, 1)),
    Segment(grouped(1, 1, 4), 3),
    Segment(grouped(1, 2, 2), 4, 1),
    Segment(Layout(2, 2, shard="step"), 5, 1),
    Segment(grouped(1, 2, 2, workers=(4, 0, 1, 3), shard="step"), 6, 3),
)
"""State shared out and not, over groups of 1, 2 and 4. Pieces of the second shape have owners in one domain, and a buddy."""


@pytest.mark.wide
@pytest.mark.parametrize(("ranges", "journey"), [(1, JOURNEY), (3, SHARING_JOURNEY)], ids=["whole", "shared out and not"])
def test_reshapes_between_group_sizes_change_no_bit(ranges: int, journey: tuple[Segment, ...], warm_workers: WarmWorkers) -> None:
    case = replace(TRAVELLING, state_ranges=ranges)
    alone = lone_run(warm_workers, case)
    runs = run_series(warm_workers, case, journey)
    assert losses_of(runs) == alone.losses
    assert whole(runs) == alone.units
    assert {run.digest for run in runs if run.units} == {alone.digest}
    assert {run.guard for run in runs if run.units} == {alone.guard}, "each sample is scored once"
    if ranges > 1:
        check_copies(runs, "after 2", at_least=2)


PAIR, PAIRS = grouped(1, 1, 2), grouped(1, 2, 2, shard="step")


@pytest.mark.parametrize(
    ("layout", "domains", "after"),
    [
        pytest.param(PAIR, (0, 0), Layout(1, 1), marks=pytest.mark.wide),
        pytest.param(PAIR, (0, 1), Layout(1, 1), marks=pytest.mark.wide),
        (PAIRS, (0, 1, 0, 1), grouped(1, 1, 4)),
    ],
    ids=["one node", "two nodes", "two nodes, shared out"],
)
def test_a_checkpoint_of_groups_resumes_in_any_shape_and_copies_are_equal(
    layout: Layout, domains: tuple[int, ...], after: Layout, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    case = replace(TRAVELLING, steps=4, freezing=((3, 1),), state_ranges=layout.dp_degree)
    alone = lone_run(warm_workers, case)
    runs = run_series(warm_workers, case, [Segment(layout, 3, domains=domains)], str(tmp_path), checkpoint_step=2)
    (folder,) = {run.checkpoint for run in runs}
    covered = len(set(domains)) > 1
    assert {run.covered[3] for run in runs} == {(covered,) * NUM_UNITS * case.state_ranges * (1 + case.inner_tiles)}
    # Of what its replica owns: what no tile cuts, and half of the tiles; in another node it is the buddy of the other half.
    assert all(len(run.tags) == NUM_UNITS * (5 if covered else 3) for run in runs)
    check_copies(runs, "after 3", at_least=2 if covered else 1)
    resumed = run_series(warm_workers, case, [Segment(after, case.steps, 1)], str(tmp_path), resume=(folder, 2))
    assert whole(resumed) == alone.units and {run.digest for run in resumed} == {alone.digest}


# ---- failures, by real workers

TILED = replace(CASE, inner_tiles=2)


Undisturbed = Callable[[int], Outcome]


@pytest.fixture(scope="module")
def undisturbed(warm_workers: WarmWorkers, tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """Return a function from the number of ranges to the run on one worker."""
    folders = tmp_path_factory.mktemp
    return cache(lambda ranges: run_with_faults(warm_workers, folders("alone"), [Layout(1, 1)], case=tiled(ranges)))


def tiled(ranges: int) -> Case:
    return replace(TILED, state_ranges=ranges)


@pytest.mark.wide
@pytest.mark.parametrize("phase", ["schedule", "seen"], ids=["in a block", "after the vote"])
def test_a_lost_member_of_a_group_costs_no_step(
    phase: str, undisturbed: Undisturbed, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """The other member blocks in a sum over tiles; it is the buddy of the lost one's tiles, and goes on alone."""
    layouts = (grouped(1, 1, 2), Layout(1, 1, workers=(0,)))
    ended = run_with_faults(warm_workers, tmp_path, layouts, [kill(1, 8, phase)], TILED, nodes=("north", "south"), dying=range(2))
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_undisturbed(ended, undisturbed(1))


def test_a_member_lost_while_its_group_gathers_a_message_costs_no_step(
    undisturbed: Undisturbed, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """Worker 3 dies before its first forward: worker 2 has its share of the activation, and blocks in the gather. State is in
    ranges of each tile."""
    layouts = (grouped(2, 1, 2), Layout(3, 1))
    faults, nodes = [kill(3, 8, "schedule")], ("north", "south") * 2
    ended = run_with_faults(warm_workers, tmp_path, layouts, faults, tiled(2), nodes=nodes, dying=range(4))
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_undisturbed(ended, undisturbed(2))


NORTH_AND_SOUTH = ("north", "north", "south", "south")


@pytest.mark.parametrize(
    ("ranges", "before"),
    [pytest.param(1, grouped(2, 1, 2), marks=pytest.mark.wide), (3, PAIRS)],
    ids=["a stage", "the owners of shares"],
)
def test_the_loss_of_a_node_with_a_whole_group_costs_no_step(
    ranges: int, before: Layout, undisturbed: Undisturbed, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """The other group's members are buddies: each owner, or with ranges the first, has sent them each step's gradients."""
    layouts = (before, Layout(3, 1), grouped(1, 1, 2))
    faults = [kill(0, 8, "norms"), kill(1, 8, "norms")]
    ended = run_with_faults(warm_workers, tmp_path, layouts, faults, tiled(ranges), nodes=NORTH_AND_SOUTH, dying=range(4))
    assert all(isinstance(one, GoOn) for one in ended.run.answers) and ended.run.answers
    assert_undisturbed(ended, undisturbed(ranges))


@pytest.mark.wide
@pytest.mark.parametrize("kind", ["late_commit", "tear"])
def test_a_share_in_a_group_is_committed_late_and_comes_back_where_it_was_torn(
    kind: str, undisturbed: Undisturbed, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    faults = [{"kind": kind, "step": 5, "worker": 1}, {"kind": kind, "step": 9, "worker": 2}]
    ended = run_with_faults(warm_workers, tmp_path, [PAIRS], faults, tiled(3), nodes=NORTH_AND_SOUTH)
    assert [type(one) for one in ended.run.answers] == [GoOn, GoOn]
    assert_undisturbed(ended, undisturbed(3))


@pytest.mark.wide
@pytest.mark.parametrize("shard", ["step", "use"])
def test_one_lost_owner_of_a_share_in_a_group_costs_no_step(
    shard: str, undisturbed: Undisturbed, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """The vote has passed: the buddy has its tiles' moments and gradients, the other member of its group those of what no tile
    cuts, and they commit them late if need be."""
    layouts, nodes = (replace(PAIRS, shard=shard), Layout(1, 3, shard=shard)), ("north", "south") * 2
    ended = run_with_faults(warm_workers, tmp_path, layouts, [kill(2, 8, "seen")], tiled(3), nodes=nodes, dying=range(4))
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_undisturbed(ended, undisturbed(3))
