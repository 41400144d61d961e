"""Adapters in tensor tiles: every shape has the bits of a plain loop that computes the same tiles of the model that plain peft
has adapted (docs/protocols.md 1.20, 1.23 and 1.25)."""

from dataclasses import replace
from pathlib import Path

import pytest

from frostline_contract.usage import Held
from frostline_controller.recovery.facts import GoOn
from frostline_trainer.families.base import learnable
from frostline_trainer.step.local_shards import weight_bytes
from frostline_trainer.tensor.state import cut_layers, layer_of
from tests.exact_cases import Case, build_case
from tests.hand_made_plans import Layout, Segment, grouped, run_series
from tests.integration.test_buddies import check_copies
from tests.integration.test_exactness import differences
from tests.integration.test_pieces import whole
from tests.integration.test_recovery_moves import assert_undisturbed, kill, run_with_faults
from tests.integration.test_reshape_moves import lone_run, losses_of
from tests.warm_workers import WarmWorkers
from tests.wide_rows import all_wide

FROM_ONE = ((1, 1), (3, 3))
LAST = Case("bert_classification", "bfloat16", ((1, 4),), inner_tiles=4, adapters="last half", adapter_dropout=0.2, steps=3)
GAP = Case(
    "bert_classification", "mixed_bfloat16", ((1, 2), (3, 3)), inner_tiles=2, adapters=(1, 4), adapter_dropout=0.2, steps=4
)
"""Of blocks 2 and 3, between two with adapters, nothing learns."""
CASES = (
    (LAST, Layout(1, 1)),
    (Case("gpt2_tied", inner_tiles=2, adapters="all", adapter_dropout=0.2, freezing=FROM_ONE, steps=4), grouped(2, 1, 2)),
    (GAP, grouped(1, 2, 2)),
)
"""Every kind of layer, in one worker, in a group with a pipeline and in one with replicas. Every step is audited."""
MORE_CASES = (
    (replace(GAP, dtype="bfloat16", inner_tiles=4), grouped(1, 1, 4)),
    (Case("vit", "float64", inner_tiles=4, adapters="all", freezing=((1, 1),), optimizer="sgd", steps=3), Layout(1, 1)),
    (Case("llama", "mixed_bfloat16", ((1, 1), (2, 4), (3, 1)), inner_tiles=2, adapters="all", adapter_dropout=0.1, steps=4),
     grouped(1, 1, 2)),
    (Case("llama", inner_tiles=2, vocabulary_tiles=True, adapters="all", freezing=FROM_ONE, steps=4), grouped(1, 1, 2)),
    (Case("gpt2_tied", inner_tiles=2, vocabulary_tiles=True, adapters="all", freezing=FROM_ONE, steps=4), grouped(1, 1, 2)),
    (Case("gpt2_tied", inner_tiles=2, adapters="all", state_ranges=2, freezing=FROM_ONE, steps=4), grouped(1, 1, 2)),
    (Case("gpt2_tied", inner_tiles=2, adapters="all", state_ranges=2, freezing=FROM_ONE, steps=4), grouped(1, 2, 2, shard="use")),
    (Case("gpt2_untied", inner_tiles=2, adapters="all", freezing=FROM_ONE, activation_checkpointing=True, steps=4),
     grouped(2, 1, 2, 2, "zb_v")),
)  # fmt: skip


def in_words(value: object) -> str:
    return f"{value.family}-{value.dtype}" if isinstance(value, Case) else str(value)


@pytest.mark.parametrize(("case", "layout"), [*CASES, *all_wide(*MORE_CASES)], ids=in_words)
def test_a_shape_has_the_bits_of_plain_peft_in_tiles(case: Case, layout: Layout, warm_workers: WarmWorkers) -> None:
    assert differences(case, run_series(warm_workers, case, [Segment(layout, case.steps)])) == []


JOURNEY = (
    Segment(grouped(2, 1, 2, workers=(2, 0, 3, 1)), 2, 2, domains=(0, 1, 0, 1)),
    Segment(grouped(1, 1, 4, workers=(3, 1, 4, 0)), 3, 2, domains=(0, 0, 1, 1)),
    Segment(grouped(1, 1, 2, workers=(4, 0)), 5, 3),
    Segment(Layout(1, 1, workers=(4,)), 6, 5),
)
"""Groups of 2, 4 and 2 and no group any more; freezes at steps 3 and 5. Blocks that a worker has never computed come to it."""


def test_reshapes_between_group_sizes_move_what_learns_alone(warm_workers: WarmWorkers, tmp_path: Path) -> None:
    case = Case("gpt2_tied", inner_tiles=4, adapters=(1, 2, 4), adapter_dropout=0.1, freezing=((1, 2), (3, 3), (5, 5)), steps=6)
    alone = lone_run(warm_workers, case)
    runs = run_series(warm_workers, case, JOURNEY, str(tmp_path), checkpoint_step=2)
    assert losses_of(runs) == alone.losses and whole(runs) == alone.units
    assert {run.digest for run in runs if run.units} == {alone.digest}
    assert {run.guard for run in runs if run.units} == {alone.guard}
    check_copies(runs, "after 2")
    learning = sum(p.nbytes for unit in build_case(case).cut.units for p in learnable(unit).values())
    assert max(run.moved_bytes for run in runs) < 2 * 3 * learning, "in each of two moves at most weights and moments"
    (folder,) = {run.checkpoint for run in runs if run.checkpoint}
    resumed = run_series(warm_workers, case, [Segment(grouped(1, 2, 2), 6, 2)], str(tmp_path), resume=(folder, 2))
    assert whole(resumed) == alone.units and {run.digest for run in resumed} == {alone.digest}


SHARED = (
    Segment(grouped(1, 2, 2, shard="use"), 2, 1, domains=(0, 0, 1, 1)),
    Segment(grouped(1, 2, 2, shard="step"), 3, 3, domains=(0, 0, 1, 1)),
    Segment(grouped(1, 1, 2), 4, 3, domains=(0, 1)),
    Segment(grouped(1, 2, 2, shard="use"), 6, 1, domains=(0, 0, 1, 1)),
)
"""Blocks freeze at step 3 and learn again from step 5 on, while shares come and go."""


@pytest.mark.wide
def test_shares_and_groups_come_and_go_over_adapters(warm_workers: WarmWorkers) -> None:
    case = Case("gpt2_tied", inner_tiles=2, adapters="all", state_ranges=2, freezing=((1, 1), (3, 3), (5, 1)), steps=6)
    alone, runs = lone_run(warm_workers, case), run_series(warm_workers, case, SHARED)
    assert losses_of(runs) == alone.losses and whole(runs) == alone.units
    assert {run.digest for run in runs if run.units} == {alone.digest}


@pytest.mark.wide
def test_a_lost_member_of_a_group_costs_no_step(warm_workers: WarmWorkers, tmp_path: Path) -> None:
    """The other one is the buddy of its tiles, and has the whole of what never learns: it goes on alone."""
    case = Case("gpt2_tied", inner_tiles=2, adapters="all", adapter_dropout=0.1, freezing=((1, 1),), steps=12)
    folders = [tmp_path / name for name in ("alone", "group")]
    for folder in folders:
        folder.mkdir()
    alone = run_with_faults(warm_workers, folders[0], [Layout(1, 1)], case=case)
    layouts, faults = (grouped(1, 1, 2), Layout(1, 1, workers=(0,))), [kill(1, 8, "schedule")]
    ended = run_with_faults(warm_workers, folders[1], layouts, faults, case, nodes=("north", "south"), dying=range(2))
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_undisturbed(ended, alone)


def test_a_member_holds_its_tiles_of_what_learns_and_of_what_never_does(warm_workers: WarmWorkers) -> None:
    """From step 3 on two blocks of six are frozen and whole."""
    case = Case("bert_classification", inner_tiles=2, adapters=(0, 3, 4, 5), freezing=((1, 1), (3, 3)), steps=4)
    units = build_case(case).cut.units
    tiled = [sum(p.nbytes for name, p in unit.named_parameters() if layer_of(unit, name) is not None) for unit in units]
    learning = [sum(unit.get_parameter(name).nbytes for name in cut_layers(unit)) for unit in units]
    assert all(0 < mine < everything / 4 for mine, everything in zip(learning[4:-1], tiled[4:-1], strict=True))
    for last, first_to_learn in ((2, 1), (4, 3)):
        (alone,) = run_series(warm_workers, case, [Segment(Layout(1, 1), last)], score=False)
        assert alone.resident[Held.WEIGHTS] == sum(map(weight_bytes, units))
        runs = run_series(warm_workers, case, [Segment(grouped(1, 1, 2), last)], score=False)
        spared = sum(tiled[first_to_learn:]) // 2
        assert {alone.resident[Held.WEIGHTS] - run.resident[Held.WEIGHTS] for run in runs} == {spared}
