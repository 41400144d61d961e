"""Placement changes no bit of adapters: shapes, freezes, moves, buddies, pieces and checkpoints have the bits of a plain
loop over the model that plain peft has adapted (docs/protocols.md 1.20)."""

from dataclasses import replace
from pathlib import Path

import pytest

from frostline_contract.pieces import Pieces
from frostline_controller.recovery.facts import GoOn
from frostline_trainer.checkpoints.reading import load_piece, read_manifest
from tests.exact_cases import NUM_UNITS, Case
from tests.hand_made_plans import Layout, Segment, run_series
from tests.integration.test_buddies import check_copies
from tests.integration.test_exactness import differences
from tests.integration.test_recovery_moves import NODES, assert_undisturbed, kill, run_with_faults
from tests.integration.test_reshape_moves import lone_run, losses_of
from tests.warm_workers import WarmWorkers

FROM_THREE = ((1, 4), (4, 6))
"""Adapters from block 3 on: frozen from step 1 up to them, and up to block 5 later."""
CASES = (
    (Case("vit", "mixed_bfloat16", adapters="last half", freezing=FROM_THREE), Layout(2, 2)),
    (Case("bert_classification", adapters="last half", adapter_dropout=0.2, freezing=FROM_THREE), Layout(4, 1)),
    (Case("gpt2_tied", "float64", adapters="3-4", dropout=0.0, adapter_dropout=0.1, freezing=((1, 4), (5, 5))), Layout(1, 3)),
    (Case("llama", adapters="all", freezing=((1, 1), (2, 4), (4, 1)), optimizer="sgd"), Layout(2, 1, 2, "interleaved_1f1b")),
)
GAP = Case("bert_classification", adapters=(1, 4), freezing=((1, 2),), steps=4)
"""Blocks 2 and 3, between two with adapters, learn nothing and hand gradients on."""


LEFT = Case("bert_classification", adapters=(1,), freezing=((1, 2), (3, 4)), steps=4)
"""From step 3 on the block with adapters is frozen: of the other units, the head alone learns."""


def in_words(value: object) -> str:
    return f"{value.family}-{value.dtype}" if isinstance(value, Case) else str(value)


@pytest.mark.parametrize(("case", "layout"), CASES, ids=in_words)
def test_a_shape_has_the_bits_of_plain_peft(case: Case, layout: Layout, warm_workers: WarmWorkers) -> None:
    assert differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)])) == []


def test_a_stage_between_adapters_only_hands_gradients_on(warm_workers: WarmWorkers) -> None:
    """Three stages of two replicas, the middle one of blocks without adapters, each on a node of its own with buddies."""
    (alone,) = run_series(warm_workers, GAP, [Segment(Layout(1, 1), GAP.steps)])
    assert differences(GAP, [alone]) == []
    deep = [Segment(Layout(3, 1), GAP.steps, bounds=(0, 3, 5, 8), domains=(0, 1, 2))]
    wide = [Segment(Layout(3, 2), GAP.steps, bounds=(0, 3, 5, 8))]
    for segments in (deep, wide):
        runs = run_series(warm_workers, GAP, segments)
        assert differences(GAP, runs) == []
        assert {run.digest for run in runs} == {alone.digest}


def test_a_stage_in_which_nothing_is_left_to_learn_has_no_backward(warm_workers: WarmWorkers) -> None:
    """The stage's units lie behind the freeze point without adapters, and no unit before them learns: there is no graph."""
    for layout, bounds in ((Layout(1, 1), None), (Layout(3, 1), (0, 3, 6, 8)), (Layout(3, 2), (0, 3, 6, 8))):
        assert differences(LEFT, run_series(warm_workers, LEFT, [Segment(layout, LEFT.steps, bounds=bounds)])) == []


@pytest.mark.parametrize("ranges", [1, 3])
def test_moves_buddies_and_checkpoints_carry_what_learns_alone(ranges: int, warm_workers: WarmWorkers, tmp_path: Path) -> None:
    case = replace(CASES[1][0], steps=6, state_ranges=ranges)
    alone = lone_run(warm_workers, case)
    journey = [
        Segment(Layout(2, 1), 2, 4, domains=(0, 1)),
        Segment(Layout(2, 2, 1, "1f1b", (2, 0, 3, 1)), 4, 4),
        Segment(Layout(1, 1, 1, "1f1b", (3,)), 6, 4),
    ]
    runs = run_series(warm_workers, case, journey, str(tmp_path), checkpoint_step=3)
    assert losses_of(runs) == alone.losses
    assert runs[3].units == alone.units and runs[3].digest == alone.digest
    check_copies(runs, "after 2")
    (folder,) = {run.checkpoint for run in runs if run.checkpoint}
    manifest, table = read_manifest(tmp_path / folder), Pieces(NUM_UNITS, ranges)
    states = [load_piece(tmp_path / folder, manifest, table, piece) for piece in range(table.count)]
    names = {key.partition("/")[2] for state in states for key in state}
    assert names and all("lora_" in name or name.startswith(("pooler", "classifier")) for name in names)
    whole = sum(tensor.numel() * tensor.element_size() for state in states for tensor in state.values())
    assert max(run.moved_bytes for run in runs) < 2 * whole
    resumed = run_series(warm_workers, case, [Segment(Layout(1, 2), 6, 4)], str(tmp_path), resume=(folder, 3))
    assert {run.digest for run in resumed} == {alone.digest}


SHARED = (
    (replace(CASES[0][0], state_ranges=2, freezing=((1, 1), (3, 4)), adapters="all", steps=4), Layout(2, 2, shard="step")),
    # Blocks of which nothing is gathered; in the last row a whole stage of them.
    (replace(GAP, state_ranges=3, adapter_dropout=0.1, freezing=((1, 2), (3, 3))), Layout(1, 3, shard="use")),
    (replace(LEFT, state_ranges=3), Layout(2, 3, shard="use")),
)


@pytest.mark.parametrize(("case", "layout"), SHARED, ids=in_words)
def test_replicas_share_out_what_learns(case: Case, layout: Layout, warm_workers: WarmWorkers) -> None:
    runs = run_series(warm_workers, case, [Segment(layout, case.steps)])
    assert differences(case, runs) == []
    (alone,) = run_series(warm_workers, case, [Segment(Layout(1, 1), case.steps)], score=False)
    assert 0 < max(run.moment_bytes for run in runs) < 0.8 * alone.moment_bytes


RECOVERY = Case("gpt2_tied", freezing=((1, 1),), steps=12, adapters="all", adapter_dropout=0.1)
"""Freezes at steps 7 and 11, as hand-made decisions say."""


def test_a_stage_that_only_its_buddy_has_comes_back(warm_workers: WarmWorkers, tmp_path: Path) -> None:
    """(4, 1) on four nodes: one dies after the vote of step 5, so that its buddy has committed the step, and it alone."""
    alone = run_with_faults(warm_workers, tmp_path_of(tmp_path, "alone"), [Layout(1, 1)], case=RECOVERY)
    for phase in ("exchange", "seen"):
        folder, faults = tmp_path_of(tmp_path, phase), [kill(1, 5, phase)]
        layouts = [Layout(4, 1), Layout(3, 1)]
        ended = run_with_faults(warm_workers, folder, layouts, faults, RECOVERY, nodes=NODES, dying=range(4))
        assert [type(one) for one in ended.run.answers] == [GoOn]
        assert_undisturbed(ended, alone)


def tmp_path_of(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name
