"""Reshapes, joiners, leavers and resumes change no bit: the engine's own code moves state, and the digest is one worker's."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from frostline_contract.pieces import Pieces
from frostline_trainer.checkpoints.reading import load_piece, read_manifest
from tests.engine_member import Run
from tests.exact_cases import NUM_UNITS, Case
from tests.hand_made_plans import Layout, Segment, run_series
from tests.integration.test_exactness import differences
from tests.warm_workers import WarmWorkers

CASES = (
    Case("gpt2_tied", freezing=((4, 1), (8, 3), (11, 5)), steps=13),
    Case("bert_classification", "float64", freezing=((4, 1), (8, 3), (11, 5)), steps=13, optimizer="sgd"),
    Case("vit", "bfloat16", freezing=((4, 1), (8, 3), (11, 5)), steps=13),
    Case("llama", "mixed_bfloat16", freezing=((4, 1), (8, 3), (11, 5)), steps=13),
)

JOURNEY = (
    Segment(Layout(4, 1), 2),
    Segment(Layout(2, 2, 1, "1f1b", (2, 0, 3, 1)), 4),
    # A switch with uneven bounds, one step after a freeze: worker 3 is a spare now.
    Segment(Layout(3, 1, 1, "gpipe", (1, 2, 0)), 6, 1, (0, 2, 5, 8)),
    Segment(Layout(1, 4, 1, "1f1b", (3, 1, 0, 2)), 8, 1),
    Segment(Layout(2, 1, 1, "1f1b", (3, 2)), 9, 3),
    # Six workers: two have just joined, two were away. Then all leave but one, which held nothing.
    Segment(Layout(2, 3, 1, "1f1b", (4, 0, 2, 5, 1, 3)), 10, 3),
    Segment(Layout(2, 2, 2, "interleaved_1f1b", (5, 4, 1, 0)), 12, 3),
    Segment(Layout(1, 1, 1, "1f1b", (3,)), 13, 5),
)
"""(4, 1) -> (2, 2) -> (3, 1) -> (1, 4) -> (2, 1) -> (2, 3) -> (2, 2) interleaved -> 1, with freezes at steps 4, 8 and 11."""
JOURNEYS = (CASES[0], *(pytest.param(case, marks=pytest.mark.wide) for case in CASES[1:-1]), CASES[-1])
"""One type for all tensors, and two."""


def losses_of(runs: list[Run]) -> dict[int, float]:
    """Return the losses by step, after checking that all members of a step have the same."""
    losses: dict[int, float] = {}
    for run in runs:
        for step, loss in run.losses.items():
            assert losses.setdefault(step, loss) == loss, f"step {step}"
    return dict(sorted(losses.items()))


@cache
def lone_run(workers: WarmWorkers, case: Case) -> Run:
    """Return the undisturbed run on one worker, which has the oracle's bits."""
    (run,) = run_series(workers, case, [Segment(Layout(1, 1), case.steps)])
    assert differences(case, [run]) == []
    return run


@pytest.mark.parametrize("case", JOURNEYS, ids=lambda case: f"{case.family}-{case.dtype}")
def test_a_journey_through_eight_shapes_ends_with_one_workers_bits(case: Case, warm_workers: WarmWorkers) -> None:
    alone = lone_run(warm_workers, case)
    runs = run_series(warm_workers, case, JOURNEY)
    assert losses_of(runs) == alone.losses
    assert runs[3].units == alone.units
    assert {run.digest for run in runs if run.units} == {alone.digest}
    assert runs[3].guard == alone.guard
    joined_at = {number: min(run.losses) for number, run in enumerate(runs)}
    assert joined_at == {0: 1, 1: 1, 2: 1, 3: 1, 4: 10, 5: 10}
    assert all(run.moved_bytes > 0 for run in runs), "every worker received state at some switch"


def test_moments_travel_with_their_units(warm_workers: WarmWorkers) -> None:
    case = replace(CASES[0], steps=4, freezing=((3, 2),))
    runs = run_series(warm_workers, case, [Segment(Layout(4, 1), 3), Segment(Layout(1, 2, 1, "1f1b", (4, 5)), 4, 2)])
    alone = lone_run(warm_workers, case)
    assert runs[4].units == runs[5].units == alone.units
    moved = [name for held in runs[4].units.values() for name in held if name.endswith("|exp_avg_sq")]
    assert len(moved) == sum(1 for held in alone.units.values() for name in held if "|" not in name)


def test_a_layout_that_repeats_moves_nothing(warm_workers: WarmWorkers) -> None:
    case = replace(CASES[0], steps=4)
    runs = run_series(warm_workers, case, [Segment(Layout(2, 2), 2), Segment(Layout(2, 2), 4)])
    assert [run.moved_bytes for run in runs] == [0, 0, 0, 0]
    assert losses_of(runs) == lone_run(warm_workers, case).losses


@pytest.mark.parametrize(("before", "after"), [(Layout(2, 2), Layout(3, 1)), (Layout(3, 1), Layout(1, 4))], ids=str)
def test_a_checkpoint_resumes_in_another_shape(before: Layout, after: Layout, warm_workers: WarmWorkers, tmp_path: Path) -> None:
    case = CASES[0]
    alone = lone_run(warm_workers, case)
    runs = run_series(warm_workers, case, [Segment(before, 7)], str(tmp_path), checkpoint_step=6)
    (folder,) = {run.checkpoint for run in runs}
    manifest = read_manifest(tmp_path / folder)
    assert (manifest["step"], len(manifest["units"])) == (6, NUM_UNITS)
    assert "exp_avg/wte.weight" in load_piece(tmp_path / folder, manifest, Pieces(NUM_UNITS), 0)
    resumed = run_series(warm_workers, case, [Segment(after, case.steps, 1)], str(tmp_path), resume=(folder, 6))
    assert losses_of(resumed) == {step: loss for step, loss in alone.losses.items() if step > 6}
    assert {run.digest for run in resumed} == {alone.digest}


def test_the_manifest_holds_the_digest_of_the_state(warm_workers: WarmWorkers, tmp_path: Path) -> None:
    case = replace(CASES[0], steps=6)
    runs = run_series(warm_workers, case, [Segment(Layout(2, 2), 5)], str(tmp_path), checkpoint_step=4)
    stopped = run_series(warm_workers, case, [Segment(Layout(4, 1), 4)])
    assert read_manifest(tmp_path / runs[0].checkpoint)["digest"] == stopped[0].digest


def relative_gap(case: Case, layout: Layout, workers: WarmWorkers) -> float:
    """Return the largest relative difference between a layout's losses and one worker's."""
    case = replace(case, numerics="fast")
    (alone,) = run_series(workers, case, [Segment(Layout(1, 1), case.steps)], score=False)
    shared = losses_of(run_series(workers, case, [Segment(layout, case.steps)], score=False))
    return max(abs(shared[step] - loss) / abs(loss) for step, loss in alone.losses.items())


def test_fast_numerics_agree_to_rounding(warm_workers: WarmWorkers) -> None:
    case = Case("vit", "float64", steps=20, learning_rate=1e-4, freezing=((8, 1), (14, 3)))
    gap = relative_gap(case, Layout(2, 2), warm_workers)
    assert gap <= 1e-8
    assert relative_gap(replace(case, dtype="float32", steps=12), Layout(1, 3), warm_workers) <= 1e-5


@pytest.mark.wide
@pytest.mark.parametrize(("dtype", "steps", "bound"), [("float64", 200, 1e-8), ("float32", 50, 1e-5)])
@pytest.mark.parametrize("layout", [Layout(2, 2), Layout(1, 3), Layout(4, 1)], ids=str)
def test_fast_numerics_stay_within_the_promised_bounds(
    dtype: str, steps: int, bound: float, layout: Layout, warm_workers: WarmWorkers
) -> None:
    case = Case("vit", dtype, steps=steps, learning_rate=1e-4, freezing=((steps // 3, 1), (steps // 2, 3)))
    assert relative_gap(case, layout, warm_workers) <= bound


@pytest.mark.parametrize("family", [pytest.param("bert_classification", marks=pytest.mark.wide), "gpt2_tied"])
def test_activation_checkpointing_changes_no_bit(family: str, warm_workers: WarmWorkers) -> None:
    case = Case(family, activation_checkpointing=True, steps=5)
    for layout in (Layout(1, 1), Layout(2, 1, 2, "interleaved_1f1b")):
        assert differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)])) == []


def test_an_untied_head_learns_on_and_has_the_oracles_bits(warm_workers: WarmWorkers) -> None:
    case = Case("gpt2_tied", untie_on_freeze=True, steps=5)
    assert differences(case, run_series(warm_workers, case, [Segment(Layout(2, 2), case.steps)])) == []


@pytest.mark.parametrize("layout", [Layout(4, 1), Layout(2, 2), pytest.param(Layout(1, 3), marks=pytest.mark.wide)], ids=str)
def test_noise_on_the_boundary_is_the_same_on_any_placement(layout: Layout, warm_workers: WarmWorkers) -> None:
    """Freeze points 1, 3 and 5 lie at a cut, inside a stage and behind frozen stages of these layouts."""
    case = Case("vit", feature_noise=0.1)
    (alone,) = noisy = run_series(warm_workers, case, [Segment(Layout(1, 1), case.steps)])
    assert losses_of(noisy) != lone_run(warm_workers, replace(case, feature_noise=0.0)).losses, "the noise shows"
    runs = run_series(warm_workers, case, [Segment(layout, case.steps)])
    assert losses_of(runs) == alone.losses
    assert {run.digest for run in runs} == {alone.digest}


def test_a_batch_per_replica_runs_and_takes_more_samples(warm_workers: WarmWorkers) -> None:
    case = Case("bert_classification", batch="per_replica", steps=3, freezing=())
    runs = run_series(warm_workers, case, [Segment(Layout(1, 2), case.steps)])
    losses = losses_of(runs)
    assert len(losses) == 3 and all(0.0 < loss < 10.0 for loss in losses.values())
    assert runs[0].digest == runs[1].digest
    assert losses != lone_run(warm_workers, replace(case, batch="global")).losses
