"""Groups whose members share the tiles of their stages (`placement.tp_degree`): the bits of one worker, in any shape, through
reshapes, freezes and failures (docs/protocols.md 1.24)."""

from dataclasses import replace
from pathlib import Path

import pytest

from frostline_controller.recovery.facts import GoOn
from tests.exact_cases import NUM_UNITS, THAWING, Case
from tests.hand_made_plans import Layout, Segment, run_series
from tests.integration.test_buddies import check_copies
from tests.integration.test_exactness import differences
from tests.integration.test_pieces import whole
from tests.integration.test_recovery_moves import CASE, Outcome, assert_undisturbed, kill, run_with_faults
from tests.integration.test_reshape_moves import lone_run, losses_of
from tests.simulated_members import run_simulated
from tests.simulated_nccl import Network
from tests.warm_workers import WarmWorkers


def grouped(
    pp_degree: int, dp_degree: int, tp_columns: int, *rest: object, workers: tuple[int, ...] | None = None, shard: str = "none"
) -> Layout:
    return Layout(pp_degree, dp_degree, *rest, workers=workers, shard=shard, tp_columns=tp_columns)  # type: ignore[arg-type]


EXACT = [
    (Case("gpt2_tied", inner_tiles=2, steps=4, freezing=((2, 1), (3, 3))), grouped(1, 1, 2)),
    (Case("bert_classification", "bfloat16", inner_tiles=4, freezing=THAWING, steps=4), grouped(2, 1, 2, 1, "gpipe")),
    (Case("gpt2_untied", "float64", inner_tiles=4, steps=3, activation_checkpointing=True), grouped(1, 1, 4)),
    (Case("llama", "mixed_bfloat16", inner_tiles=2, freezing=((2, 1),), steps=3), grouped(1, 2, 2)),
    (
        Case("gpt2_tied", inner_tiles=4, state_ranges=3, clip_norm=0.1, freezing=((3, 1), (4, 3)), steps=4),
        grouped(1, 3, 2, shard="step"),
    ),
    (Case("bert_classification", "bfloat16", inner_tiles=2, state_ranges=5, steps=3), grouped(2, 2, 2, shard="step")),
]


@pytest.mark.parametrize(("case", "layout"), EXACT, ids=str)
def test_a_shape_with_groups_has_the_bits_of_a_plain_loop_over_tiles(
    case: Case, layout: Layout, warm_workers: WarmWorkers
) -> None:
    assert differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)])) == []


@pytest.mark.parametrize("run_ahead", [False, True], ids=["at once", "devices behind their hosts"])
def test_groups_over_nccls_rules_end_with_the_same_bits(run_ahead: bool) -> None:
    """Sums over tiles, messages between stages and sums over replicas have separate communicators; no dropout, since torch's
    generator belongs to the process."""
    case = Case("gpt2_tied", dropout=0.0, inner_tiles=2, steps=3, freezing=((2, 1),))
    network = Network(run_ahead=run_ahead)
    try:
        assert differences(case, run_simulated(case, grouped(2, 2 - run_ahead, 2), network)) == []
    finally:
        network.close()


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


def test_reshapes_between_group_sizes_change_no_bit(warm_workers: WarmWorkers) -> None:
    alone = lone_run(warm_workers, TRAVELLING)
    runs = run_series(warm_workers, TRAVELLING, JOURNEY)
    assert losses_of(runs) == alone.losses
    assert whole(runs) == alone.units
    assert {run.digest for run in runs if run.units} == {alone.digest}
    assert {run.guard for run in runs if run.units} == {alone.guard}, "each sample is scored once"


@pytest.mark.parametrize("domains", [(0, 0), (0, 1)], ids=["one node", "two nodes"])
def test_a_checkpoint_of_groups_resumes_alone_and_copies_are_equal(
    domains: tuple[int, ...], warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    case = replace(TRAVELLING, steps=4, freezing=((3, 1),))
    alone = lone_run(warm_workers, case)
    runs = run_series(warm_workers, case, [Segment(grouped(1, 1, 2), 3, domains=domains)], str(tmp_path), checkpoint_step=2)
    (folder,) = {run.checkpoint for run in runs}
    covered = len(set(domains)) > 1
    assert {run.covered[3] for run in runs} == {(covered,) * NUM_UNITS}, "members of a group are owners alike"
    check_copies(runs, "after 3")
    resumed = run_series(warm_workers, case, [Segment(Layout(1, 1), case.steps, 1)], str(tmp_path), resume=(folder, 2))
    assert whole(resumed) == alone.units and {run.digest for run in resumed} == {alone.digest}


# ---- failures, by real workers

TILED = replace(CASE, inner_tiles=2)


@pytest.fixture(scope="module")
def undisturbed(warm_workers: WarmWorkers, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_with_faults(warm_workers, tmp_path_factory.mktemp("alone"), [Layout(1, 1)], case=TILED)


@pytest.mark.parametrize("phase", ["schedule", "seen"], ids=["in a block", "after the vote"])
def test_a_lost_member_of_a_group_costs_no_step(
    phase: str, undisturbed: Outcome, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """The other member blocks in a sum over tiles; it has all state, and goes on alone."""
    layouts = (grouped(1, 1, 2), Layout(1, 1, workers=(0,)))
    ended = run_with_faults(warm_workers, tmp_path, layouts, [kill(1, 8, phase)], TILED, nodes=("north", "south"), dying=range(2))
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_undisturbed(ended, undisturbed)


def test_the_loss_of_a_node_with_a_whole_group_costs_no_step(
    undisturbed: Outcome, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """The other stage's group is the buddy: the lost group's first member has sent it each step's gradients of all tiles."""
    layouts = (grouped(2, 1, 2), Layout(3, 1), grouped(1, 1, 2))
    faults, nodes = [kill(0, 8, "norms"), kill(1, 8, "norms")], ("north", "north", "south", "south")
    ended = run_with_faults(warm_workers, tmp_path, layouts, faults, TILED, nodes=nodes, dying=range(4))
    assert all(isinstance(one, GoOn) for one in ended.run.answers) and ended.run.answers
    assert_undisturbed(ended, undisturbed)
