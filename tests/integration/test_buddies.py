"""Buddies: after every step, freeze, refusal and reshape a unit replica equals the owner's unit bit for bit; covered units."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engine_member import Run
from tests.exact_cases import NUM_UNITS, Case
from tests.hand_made_plans import Layout, Segment, run_series
from tests.integration.test_reshape_moves import lone_run, losses_of
from tests.warm_workers import WarmWorkers

FREEZING = ((3, 1), (5, 3), (7, 2))
TIED = Case("gpt2_tied", freezing=FREEZING, steps=8, clip_norm=0.5)
ALL = (True,) * NUM_UNITS


def copies_of(runs: list[Run], moment: str) -> dict[int, dict[int, str]]:
    """Return {unit: {worker number: digest}} of all workers that owned the unit or kept its replica at that moment."""
    found: dict[int, dict[int, str]] = {unit: {} for unit in range(NUM_UNITS)}
    for number, run in enumerate(runs):
        for unit, digest in run.copies.get(moment, {}).items():
            found.setdefault(unit, {})[number] = digest
    return found


def check_copies(runs: list[Run], moment: str, at_least: int = 2) -> None:
    """Assert that at least `at_least` members hold each unit at that moment, all with the same bits."""
    for unit, digests in copies_of(runs, moment).items():
        assert len(digests) >= at_least, f"{moment}: unit {unit} is held by {sorted(digests)} only"
        assert len(set(digests.values())) == 1, f"{moment}: unit {unit} differs: {digests}"


def check_gradients(runs: list[Run], steps: int) -> None:
    """Assert that a unit's owners and buddies have the same gradient of it when the step's vote has passed."""
    for step in range(1, steps + 1):
        seen: dict[int, str] = {}
        for run in runs:
            for unit, digest in run.prepared.get(step, {}).items():
                assert seen.setdefault(unit, digest) == digest, f"step {step}: unit {unit}"
        assert any(seen.values()) and len(seen) == NUM_UNITS


SHAPES = [
    (Layout(4, 1), (0, 1, 2, 3)),
    (Layout(4, 1), (0, 0, 1, 1)),
    (Layout(3, 1, 1, "gpipe"), (0, 1, 2)),
    (Layout(2, 1), (0, 1)),
    (Layout(2, 1, 2, "interleaved_1f1b"), (0, 1)),
    (Layout(2, 2), (0, 1, 0, 1)),
]
"""(layout, each member's failure domain). In the last entry both owners of a stage share a domain."""


@pytest.mark.parametrize(("layout", "domains"), SHAPES, ids=str)
def test_a_unit_replica_is_its_owners_unit_after_every_step(
    layout: Layout, domains: tuple[int, ...], warm_workers: WarmWorkers
) -> None:
    alone = lone_run(warm_workers, TIED)
    runs = run_series(warm_workers, TIED, [Segment(layout, TIED.steps, domains=domains)])
    assert losses_of(runs) == alone.losses, "keeping changes nothing"
    for step in range(1, TIED.steps + 1):
        check_copies(runs, f"after {step}")
    check_gradients(runs, TIED.steps)
    assert {run.covered[step] for run in runs for step in run.covered} == {ALL}
    assert {run.digest for run in runs} == {alone.digest}
    kept_units = [len(run.tags) for run in runs]
    assert sum(kept_units) > NUM_UNITS * layout.dp_degree, "somebody keeps a unit that it does not own"
    assert len({tag for run in runs for tag in run.tags.values()}) == 1, "frozen unit replicas too are at the last step's tag"


NUMERICS = [
    Case("vit", "bfloat16", freezing=FREEZING, steps=8),
    Case("gpt2_tied", "mixed_bfloat16", freezing=FREEZING, steps=8),
    Case("bert_classification", "float64", freezing=((3, 3), (6, 0)), steps=8, optimizer="sgd", clip_norm=None),
    Case("llama_tied", "bfloat16", freezing=FREEZING, steps=8, activation_checkpointing=True),
    Case("gpt2_tied", freezing=((3, 2),), steps=6, untie_on_freeze=True),
    Case("vit", numerics="fast", steps=5),
]


@pytest.mark.parametrize("case", NUMERICS, ids=str)
def test_every_type_optimizer_and_family_is_kept_alike(case: Case, warm_workers: WarmWorkers) -> None:
    runs = run_series(warm_workers, case, [Segment(Layout(3, 1), case.steps, domains=(0, 1, 2))], score=False)
    assert {run.covered[step] for run in runs for step in run.covered} == {ALL}
    for step in range(1, case.steps + 1):
        check_copies(runs, f"after {step}")
    check_gradients(runs, case.steps)


def test_a_refused_step_changes_no_copy_and_the_next_goes_on(warm_workers: WarmWorkers) -> None:
    case = replace(TIED, freezing=((5, 2),), steps=6)
    runs = run_series(warm_workers, case, [Segment(Layout(4, 1), 6, domains=(0, 1, 2, 3))], refused=(3, 6))
    for step in range(1, 7):
        check_copies(runs, f"after {step}")
    assert copies_of(runs, "after 3") == copies_of(runs, "after 2") != copies_of(runs, "after 4")
    assert copies_of(runs, "after 6") == copies_of(runs, "after 5")
    (tag,) = {tag for run in runs for tag in run.tags.values()}
    assert "step=6" in tag, "a refused step uses up its number"


def test_owners_in_two_domains_need_no_buddy(warm_workers: WarmWorkers) -> None:
    case = replace(TIED, steps=3)
    runs = run_series(warm_workers, case, [Segment(Layout(2, 2), 3, domains=(0, 0, 1, 1))])
    assert {run.covered[step] for run in runs for step in run.covered} == {ALL}
    assert sum(len(run.tags) for run in runs) == 2 * NUM_UNITS, "nobody keeps a unit that it does not own"
    check_copies(runs, "after 3")


def test_what_nobody_could_bring_back_is_uncovered_and_blocks_nothing(warm_workers: WarmWorkers) -> None:
    case = replace(TIED, steps=2)
    none = run_series(warm_workers, case, [Segment(Layout(2, 1), 2)])
    one = run_series(warm_workers, case, [Segment(Layout(2, 1), 2, domains=(7, 7))])
    for runs in (none, one):
        assert {run.covered[step] for run in runs for step in run.covered} == {(False,) * NUM_UNITS}
        assert sum(len(run.tags) for run in runs) == NUM_UNITS


JOURNEY = (
    Segment(Layout(4, 1), 2, domains=(0, 1, 2, 3)),
    # w1 and w2 now own the units that they kept as buddies, and keep those that they owned; w3 leaves.
    Segment(Layout(3, 1, 1, "1f1b", (1, 2, 0)), 4, 1, domains=(0, 1, 2)),
    # A joiner that receives its unit replicas together with its units.
    Segment(Layout(4, 1, 1, "gpipe", (4, 0, 1, 2)), 6, 3, domains=(0, 0, 1, 1)),
    Segment(Layout(2, 2, 1, "1f1b", (2, 4, 0, 1)), 8, 2, domains=(0, 1, 0, 1)),
)
"""Fresh -> fewer -> a joiner -> two replicas in one domain, with freezes on the way."""


def test_unit_replicas_move_with_a_reshape_and_are_whole_from_its_first_moment(warm_workers: WarmWorkers) -> None:
    alone = lone_run(warm_workers, TIED)
    runs = run_series(warm_workers, TIED, JOURNEY)
    assert losses_of(runs) == alone.losses
    for step in range(1, TIED.steps + 1):
        check_copies(runs, f"after {step}")
    for step in (0, 2, 4, 6):
        check_copies(runs, f"entered at {step}")
    assert {run.digest for run in runs if run.units} == {alone.digest}
    assert {run.covered[step] for run in runs for step in run.covered} == {ALL}


def test_a_former_unit_replica_is_not_sent_again(warm_workers: WarmWorkers) -> None:
    """w1 was the buddy of all units that it owns now: a reshape onto a buddy moves nothing."""
    case = replace(TIED, steps=4)
    series = [Segment(Layout(2, 1), 2, domains=(0, 1)), Segment(Layout(1, 1, 1, "1f1b", (1,)), 4)]
    runs = run_series(warm_workers, case, series)
    assert [run.moved_bytes for run in runs] == [0, 0]
    assert runs[1].digest == lone_run(warm_workers, case).digest


def test_a_checkpoint_gives_unit_replicas_their_state(warm_workers: WarmWorkers, tmp_path: Path) -> None:
    runs = run_series(warm_workers, TIED, [Segment(Layout(4, 1), 4, domains=(0, 1, 2, 3))], str(tmp_path), checkpoint_step=4)
    (folder,) = {run.checkpoint for run in runs}
    resumed = run_series(warm_workers, TIED, [Segment(Layout(3, 1), 8, 1, domains=(0, 1, 2))], str(tmp_path), resume=(folder, 4))
    for step in range(5, 9):
        check_copies(resumed, f"after {step}")
    assert {run.digest for run in resumed} == {lone_run(warm_workers, TIED).digest}
