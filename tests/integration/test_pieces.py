"""Several pieces a unit: moves, buddies, commits, checkpoints and recoveries by pieces end with the bits of one worker with as
many pieces. (A run with one piece a unit differs in the last bits of its gradients' norms, which are summed by piece; without
clipping it ends with the same weights.)
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from frostline_controller.recovery.facts import GoBack, GoOn
from frostline_trainer.checkpoints.reading import read_manifest
from tests.engine_member import Run
from tests.exact_cases import NUM_UNITS, Case
from tests.hand_made_plans import Layout, Segment, run_series
from tests.integration.test_buddies import check_copies
from tests.integration.test_exactness import differences
from tests.integration.test_recovery_moves import CASE, NODES, Outcome, kill, run_with_faults
from tests.integration.test_reshape_moves import lone_run, losses_of
from tests.warm_workers import WarmWorkers
from tests.wide_rows import all_wide

FREEZING = ((3, 1), (5, 3))
PLAIN = Case("gpt2_tied", freezing=FREEZING, steps=7)
"""One piece a unit."""
SHAPES = (Layout(2, 2), Layout(1, 4), Layout(3, 1))

RANGES = (pytest.param(2, marks=pytest.mark.wide), 3)
"""Two halves are the simpler case of three parts."""


def cut(ranges: int, case: Case = PLAIN) -> Case:
    return replace(case, state_ranges=ranges)


def whole(runs: list[Run]) -> dict[int, dict[str, str]]:
    """Return {unit: digests of its weights and moments}, after asserting that all owners at the end agree."""
    found: dict[int, dict[str, str]] = {}
    for run in runs:
        for unit, held in run.units.items():
            assert found.setdefault(unit, held) == held, f"unit {unit} differs between its owners"
    assert found.keys() == set(range(NUM_UNITS))
    return found


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize("layout", SHAPES, ids=str)
def test_a_shape_has_the_bits_of_one_worker(layout: Layout, ranges: int, warm_workers: WarmWorkers) -> None:
    alone = lone_run(warm_workers, cut(ranges))
    domains = tuple(range(len(layout.numbers))) if layout.dp_degree == 1 else ()
    runs = run_series(warm_workers, cut(ranges), [Segment(layout, PLAIN.steps, domains=domains)])
    assert losses_of(runs) == alone.losses
    assert whole(runs) == alone.units
    assert {run.digest for run in runs} == {alone.digest}
    if domains:
        assert {run.covered[step] for run in runs for step in run.covered} == {(True,) * (NUM_UNITS * ranges)}
        check_copies(runs, f"after {PLAIN.steps}")
        assert {piece for run in runs for piece in run.tags} == set(range(NUM_UNITS * ranges))


def test_without_clipping_one_piece_a_unit_ends_with_the_same_weights(warm_workers: WarmWorkers) -> None:
    case = replace(PLAIN, clip_norm=None, steps=3)
    whole_units, in_ranges = lone_run(warm_workers, case), lone_run(warm_workers, cut(3, case))
    assert (in_ranges.units, in_ranges.losses) == (whole_units.units, whole_units.losses)
    assert in_ranges.digest != whole_units.digest, "it is over other pieces"


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_every_type_has_the_plain_loops_bits(dtype: str, warm_workers: WarmWorkers) -> None:
    case = Case("vit", dtype, freezing=((3, 2),), steps=4, optimizer="sgd" if dtype == "float64" else "adamw", state_ranges=3)
    assert differences(case, run_series(warm_workers, case, [Segment(Layout(2, 2), case.steps)])) == []


JOURNEY = (
    Segment(Layout(3, 1), 2, domains=(0, 1, 2)),
    # Two join, one leaves; a step later a unit freezes.
    Segment(Layout(2, 2, 1, "1f1b", (3, 0, 4, 1)), 4, domains=(0, 1, 0, 1)),
    Segment(Layout(1, 4, 1, "1f1b", (2, 4, 0, 3)), 6, 1),
    Segment(Layout(2, 1, 1, "1f1b", (0, 2)), 7, 3, domains=(0, 1)),
)


@pytest.mark.parametrize("ranges", RANGES)
def test_reshapes_and_freezes_move_pieces_and_change_no_weight(ranges: int, warm_workers: WarmWorkers) -> None:
    alone = lone_run(warm_workers, cut(ranges))
    runs = run_series(warm_workers, cut(ranges), JOURNEY)
    assert losses_of(runs) == alone.losses
    assert whole(runs) == alone.units
    for step in (2, 4, 7):
        check_copies(runs, f"after {step}")
    assert {run.digest for run in runs if run.units} == {alone.digest}, "one digest on any placement"


@pytest.mark.parametrize("ranges", RANGES)
def test_a_checkpoint_of_pieces_resumes_in_another_shape(ranges: int, warm_workers: WarmWorkers, tmp_path: Path) -> None:
    alone, case = lone_run(warm_workers, cut(ranges)), cut(ranges)
    runs = run_series(warm_workers, case, [Segment(Layout(2, 2), 5)], str(tmp_path), checkpoint_step=4)
    (folder,) = {run.checkpoint for run in runs}
    assert len(read_manifest(tmp_path / folder)["pieces"]) == NUM_UNITS * ranges
    resumed = run_series(warm_workers, case, [Segment(Layout(3, 1), case.steps, 1)], str(tmp_path), resume=(folder, 4))
    assert losses_of(resumed) == {step: loss for step, loss in alone.losses.items() if step > 4}
    assert whole(resumed) == alone.units


# ---- failures, by real workers


Alone = Callable[[int], Outcome]


def lone_outcomes(pool: WarmWorkers, folders: pytest.TempPathFactory) -> Alone:
    """Return a function from the number of ranges to the undisturbed run on one worker."""
    return cache(lambda ranges: run_with_faults(pool, folders.mktemp("alone"), [Layout(1, 1)], case=cut(ranges, CASE)))


@pytest.fixture(scope="module")
def alone(warm_workers: WarmWorkers, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return lone_outcomes(warm_workers, tmp_path_factory)


def assert_same_weights(ended: Outcome, by_ranges: Alone, ranges: int) -> None:
    """Assert that losses, decisions and the state of every piece are one worker's."""
    alone = by_ranges(ranges)
    assert ended.outcome.status == "completed", (ended.outcome.message, ended.received.errors)
    assert ended.records == alone.records
    pieces = {piece: digest for survivor in ended.survivors for piece, digest in survivor.pieces.items()}
    assert pieces == alone.survivors[0].pieces
    assert all(survivor.pieces[piece] == pieces[piece] for survivor in ended.survivors for piece in survivor.pieces)
    assert {piece for survivor in ended.survivors for piece in survivor.tags} == set(range(NUM_UNITS * ranges))


@pytest.mark.parametrize("ranges", RANGES)
@pytest.mark.parametrize(
    ("layouts", "nodes", "phase"),
    [
        ((Layout(2, 2), Layout(3, 1)), (), "norms"),
        ((Layout(4, 1), Layout(3, 1)), NODES, "seen"),
        *all_wide(((Layout(2, 2), Layout(3, 1)), (), "seen"), ((Layout(4, 1), Layout(3, 1)), NODES, "norms")),
    ],
    ids=["owners, before the vote", "buddies, after the vote", "owners, after the vote", "buddies, before the vote"],
)
def test_a_killed_member_costs_no_weight(layouts: tuple[Layout, Layout], nodes: tuple[str, ...], phase: str, ranges: int,
                                         alone: Alone, warm_workers: WarmWorkers, tmp_path: Path) -> None:  # fmt: skip
    """The killed member's state comes back piece by piece, from the other replica, or from its buddy."""
    case = cut(ranges, CASE)
    ended = run_with_faults(warm_workers, tmp_path, layouts, [kill(1, 8, phase)], case, nodes=nodes, dying=range(4))
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_same_weights(ended, alone, ranges)


@pytest.mark.parametrize("kind", ["late_commit", "tear"])
def test_a_late_commit_and_a_torn_update_are_by_pieces(
    kind: str, alone: Alone, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    faults = [{"kind": kind, "step": 5, "worker": 1}]
    ended = run_with_faults(warm_workers, tmp_path, [Layout(4, 1)], faults, cut(2, CASE), nodes=NODES)
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_same_weights(ended, alone, 2)


def test_a_second_death_while_pieces_move(alone: Alone, warm_workers: WarmWorkers, tmp_path: Path) -> None:
    """A member that had received some of a unit's pieces by then has those pieces, or none."""
    layouts = [Layout(2, 2), Layout(3, 1), Layout(2, 1)]
    faults = [kill(1, 5, "vote"), kill(2, 4, "reshape")]
    ended = run_with_faults(warm_workers, tmp_path, layouts, faults, cut(2, CASE), nodes=NODES, dying=range(4))
    assert all(isinstance(one, GoOn) for one in ended.run.answers)
    assert_same_weights(ended, alone, 2)


def test_a_death_in_a_planned_reshape_by_pieces(alone: Alone, warm_workers: WarmWorkers, tmp_path: Path) -> None:
    reshape = (Layout(4, 1, workers=(2, 0, 3, 1)), (4, 6))
    ended = run_with_faults(warm_workers, tmp_path, [Layout(2, 2), Layout(3, 1)], [kill(1, 4, "reshape")], cut(3, CASE),
                            nodes=NODES, reshape=reshape, dying=range(4))  # fmt: skip
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_same_weights(ended, alone, 3)


@pytest.mark.parametrize("ranges", RANGES)
def test_what_nobody_holds_comes_back_from_a_checkpoint_of_pieces(
    ranges: int, alone: Alone, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """Without buddies a dead stage takes the run back to step 4, in a new lineage: an unclean resume."""
    case = cut(ranges, CASE)
    ended = run_with_faults(warm_workers, tmp_path, [Layout(4, 1), Layout(3, 1)], [kill(1, 7, "schedule")], case, dying=range(4))
    (answer,) = ended.run.answers
    assert isinstance(answer, GoBack)
    assert list(answer.missing) == [piece for unit in (2, 3) for piece in range(unit * ranges, (unit + 1) * ranges)]
    assert "units [2, 3] are held by nobody" in answer.reason
    assert_same_weights(ended, alone, ranges)
