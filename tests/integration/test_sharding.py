"""Replicas that share out the state of their stages (`placement.shard: step` and `use`): the bits of one worker with as many
ranges, and a replica's part of the memory.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from frostline_controller.recovery.facts import GoBack, GoOn
from tests.engine_member import Run
from tests.exact_cases import NUM_UNITS, Case
from tests.hand_made_plans import Layout, Segment, make_plan, run_series
from tests.integration.test_buddies import check_copies
from tests.integration.test_exactness import differences
from tests.integration.test_pieces import Alone, assert_same_weights, cut, lone_outcomes, whole
from tests.integration.test_recovery_moves import CASE, NODES, kill, run_with_faults
from tests.integration.test_reshape_moves import lone_run, losses_of
from tests.warm_workers import Call, WarmWorkers
from tests.wide_rows import all_wide

TIED = Case("gpt2_tied", freezing=((3, 1), (5, 3)), steps=6, state_ranges=4)


def sharded(pp_degree: int, dp_degree: int, *rest: object, workers: tuple[int, ...] | None = None, shard: str = "step") -> Layout:
    return Layout(pp_degree, dp_degree, *rest, workers=workers, shard=shard)  # type: ignore[arg-type]


def at_use(pp_degree: int, dp_degree: int, *rest: object, workers: tuple[int, ...] | None = None) -> Layout:
    return sharded(pp_degree, dp_degree, *rest, workers=workers, shard="use")


EXACT = [
    (TIED, sharded(2, 2)),
    (Case("vit", dropout=0.2, clip_norm=None, steps=4, state_ranges=5, freezing=((2, 2), (4, 1))), sharded(1, 4)),
    (Case("gpt2_untied", steps=3, state_ranges=2, activation_checkpointing=True), sharded(2, 2, 2, "interleaved_1f1b")),
]
MORE_EXACT = [
    (TIED, sharded(1, 2)),
    (replace(TIED, freezing=()), sharded(1, 3)),
    (Case("llama", "float64", optimizer="sgd", clip_norm=0.5, steps=4, state_ranges=3), sharded(1, 3)),
    (Case("bert_classification", "bfloat16", steps=4, state_ranges=4), sharded(2, 2, 1, "gpipe")),
]


MIXED = Case("llama", "mixed_bfloat16", steps=3, state_ranges=4, freezing=((2, 3), (3, 0)))
EXACT += [(case, replace(layout, shard="use")) for case, layout in EXACT]
EXACT += [
    (MIXED, at_use(1, 2)),
    (replace(TIED, steps=4, audit_every=0), at_use(2, 3)),
    (Case("gpt2_tied", steps=3, state_ranges=3, untie_on_freeze=True), at_use(2, 2, 2, "zb_v")),
]
MORE_EXACT += [(case, replace(layout, shard="use")) for case, layout in MORE_EXACT]
MORE_EXACT += [
    (replace(TIED, freezing=(), steps=3, audit_every=0), at_use(1, 2)),
    (replace(MIXED, activation_checkpointing=True), at_use(2, 2, 1, "zb_h1")),
    (Case("bert_question_answering", steps=3, state_ranges=3), at_use(2, 3, 1, "zb_h2")),
    (Case("llama", steps=3, state_ranges=2), at_use(3, 2, 1, "gpipe")),
]


@pytest.mark.parametrize(("case", "layout"), [*EXACT, *all_wide(*MORE_EXACT)], ids=str)
def test_a_sharded_shape_has_the_oracles_bits(case: Case, layout: Layout, warm_workers: WarmWorkers) -> None:
    runs = run_series(warm_workers, case, [Segment(layout, case.steps)])
    assert differences(case, runs) == []
    assert {piece for run in runs for piece in run.tags} == set(range(NUM_UNITS * case.state_ranges))
    assert sum(len(run.tags) for run in runs) == NUM_UNITS * case.state_ranges, "each piece has one owner"


def test_a_loss_in_chunks_is_gathered_for_as_one_use(warm_workers: WarmWorkers) -> None:
    """The head's chunks are computed again in the backward, all of them with one gather."""
    case = replace(MIXED, loss_chunk_tokens=3)
    (alone,) = run_series(warm_workers, case, [Segment(Layout(1, 1), case.steps)])
    runs = run_series(warm_workers, case, [Segment(at_use(2, 2), case.steps)])
    assert losses_of(runs) == alone.losses and whole(runs) == alone.units


def test_a_probe_of_one_replica_has_the_gathers_of_all(warm_workers: WarmWorkers) -> None:
    """Only the first replica runs the probe's tiles; the likenesses are those of one worker."""
    found = {}
    case = replace(TIED, freezing=((1, 2),))
    for layout in (Layout(1, 1), at_use(2, 2), at_use(1, 3)):
        ports = warm_workers.call([Call("tests.engine_member:store_port", {})] * len(layout.numbers))
        plan = make_plan(Segment(layout, 1, 2), None, ports, case=case).model_dump(mode="json")
        members = [{"case": case, "worker_id": f"w{number}", "plan": plan} for number in layout.numbers]
        found[layout] = warm_workers.call([Call("tests.gathering_member:probed", one) for one in members])
    (alone,), *others = found.values()
    assert len(alone) == NUM_UNITS - 1 and all(one == alone for other in others for one in other)


JOURNEY = (
    Segment(Layout(1, 2), 1),
    Segment(sharded(1, 2), 2),
    Segment(sharded(2, 2, workers=(2, 0, 3, 1)), 4),
    Segment(Layout(1, 4, workers=(1, 3, 0, 2)), 5, 1),
    Segment(sharded(1, 3, workers=(4, 0, 3)), 6, 3),
)


JOURNEY_AT_USE = (
    Segment(Layout(1, 2), 1),
    Segment(at_use(1, 2, workers=(1, 0)), 2),
    Segment(at_use(2, 2, workers=(2, 0, 3, 1)), 3),
    Segment(sharded(1, 3, workers=(1, 3, 0)), 4, 1),
    Segment(at_use(1, 4, workers=(4, 1, 0, 3)), 5, 3),
    Segment(Layout(2, 1, workers=(2, 0)), 6, 3),
)


@pytest.mark.parametrize("journey", [JOURNEY, JOURNEY_AT_USE], ids=["step", "use"])
def test_reshapes_between_sharded_and_whole_change_no_bit(journey: tuple[Segment, ...], warm_workers: WarmWorkers) -> None:
    alone = lone_run(warm_workers, TIED)
    runs = run_series(warm_workers, TIED, journey)
    assert losses_of(runs) == alone.losses
    assert whole(runs) == alone.units
    assert {run.digest for run in runs if run.units} == {alone.digest}


@pytest.mark.parametrize(("before", "after"), [
    (sharded(2, 2), Layout(3, 1)), (Layout(1, 2), sharded(1, 3)), (at_use(2, 2), sharded(1, 3)), (Layout(2, 1), at_use(1, 2)),
], ids=str)  # fmt: skip
def test_a_checkpoint_resumes_sharded_or_whole(before: Layout, after: Layout, warm_workers: WarmWorkers, tmp_path: Path) -> None:
    alone = lone_run(warm_workers, TIED)
    runs = run_series(warm_workers, TIED, [Segment(before, 4)], str(tmp_path), checkpoint_step=3)
    (folder,) = {run.checkpoint for run in runs}
    resumed = run_series(warm_workers, TIED, [Segment(after, TIED.steps, 1)], str(tmp_path), resume=(folder, 3))
    assert losses_of(resumed) == {step: loss for step, loss in alone.losses.items() if step > 3}
    assert whole(resumed) == alone.units and {run.digest for run in resumed} == {alone.digest}


@pytest.mark.parametrize(("layout", "domains"), [
    (sharded(1, 2), (0, 1)), (sharded(2, 2), (0, 0, 1, 1)), (at_use(1, 2), (0, 1)), (at_use(2, 2), (0, 0, 1, 1)),
    (at_use(2, 2), (0, 1, 0, 1)),
], ids=str)  # fmt: skip
def test_buddies_of_shares_have_the_owners_bits(layout: Layout, domains: tuple[int, ...], warm_workers: WarmWorkers) -> None:
    """Replicas of a stage are buddies for each other's pieces; they compute with these weights anyway."""
    alone = lone_run(warm_workers, TIED)
    runs = run_series(warm_workers, TIED, [Segment(layout, TIED.steps, domains=domains)])
    assert whole(runs) == alone.units
    assert {run.covered[step] for run in runs for step in run.covered} == {(True,) * (NUM_UNITS * TIED.state_ranges)}
    for step in (1, 2, 4, 6):
        check_copies(runs, f"after {step}")


def held_moments(runs: list[Run]) -> list[int]:
    return [run.moment_bytes for run in runs]


def test_a_replica_holds_its_part_of_the_moments(warm_workers: WarmWorkers) -> None:
    """Each of 4 replicas has a quarter of the moments, except for step counts and for ranges that cannot be cut more evenly."""
    case = replace(TIED, freezing=(), steps=1)
    (alone,) = held_moments([lone_run(warm_workers, case)])
    of_each = held_moments(run_series(warm_workers, case, [Segment(sharded(1, 4), 1)], score=False))
    assert alone <= sum(of_each) < 1.01 * alone
    assert max(of_each) < 1.05 * alone / 4
    assert held_moments(run_series(warm_workers, case, [Segment(Layout(1, 4), 1)], score=False)) == [sum(of_each)] * 4


# ---- failures, by real workers


@pytest.fixture(scope="module")
def alone(warm_workers: WarmWorkers, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return lone_outcomes(warm_workers, tmp_path_factory)


@pytest.mark.parametrize(
    ("shard", "phase"), [("step", "norms"), ("use", "seen"), *all_wide(("step", "seen"), ("use", "norms"))],
    ids=["step, before the vote", "use, after the vote", "step, after the vote", "use, before the vote"],
)  # fmt: skip
def test_the_end_of_an_owner_costs_no_step_where_its_buddy_is(
    shard: str, phase: str, alone: Alone, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """Only the buddy has the owner's moments and its part of the step's gradients."""
    layouts = (sharded(2, 2, shard=shard), sharded(1, 3, shard=shard))
    ended = run_with_faults(warm_workers, tmp_path, layouts, [kill(1, 8, phase)], cut(3, CASE), nodes=NODES, dying=range(4))
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_same_weights(ended, alone, 3)


def test_the_end_of_an_owner_interrupts_the_gathers_of_the_others(
    alone: Alone, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    """They wait in the middle of the schedule for its weights; the step is computed again by those that are left."""
    layouts = (at_use(2, 2), at_use(1, 3))
    ended = run_with_faults(warm_workers, tmp_path, layouts, [kill(1, 7, "schedule")], cut(3, CASE), nodes=NODES, dying=range(4))
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_same_weights(ended, alone, 3)


@pytest.mark.parametrize(
    ("shard", "kind"), [("step", "late_commit"), ("use", "tear"), *all_wide(("step", "tear"), ("use", "late_commit"))]
)
def test_a_share_is_committed_late_and_comes_back_where_it_was_torn(
    shard: str, kind: str, alone: Alone, warm_workers: WarmWorkers, tmp_path: Path
) -> None:
    faults = [{"kind": kind, "step": 5, "worker": 1}]
    layouts = [sharded(1, 3, shard=shard)]
    ended = run_with_faults(warm_workers, tmp_path, layouts, faults, cut(3, CASE), nodes=NODES[:3])
    assert [type(one) for one in ended.run.answers] == [GoOn]
    assert_same_weights(ended, alone, 3)


def test_without_a_buddy_the_end_of_an_owner_takes_the_run_back(alone: Alone, warm_workers: WarmWorkers, tmp_path: Path) -> None:
    """Other replicas have only a copy of the weights, not the state: all go back to step 4's checkpoint, written in shares."""
    layouts = (sharded(1, 3), Layout(1, 2))
    ended = run_with_faults(warm_workers, tmp_path, layouts, [kill(1, 7, "schedule")], cut(3, CASE), dying=range(3))
    (answer,) = ended.run.answers
    assert isinstance(answer, GoBack)
    assert list(answer.missing) == [3 * unit + 1 for unit in range(NUM_UNITS)], "the range of the replica that ended"
    assert_same_weights(ended, alone, 3)
