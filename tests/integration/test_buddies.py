"""Buddies: after every step, freeze, refusal and reshape a ward's copy is the owner's unit, bit for bit; and what is covered."""


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
    """Unit -> {worker number: digest} of everybody who owned or kept it at that moment."""
    found: dict[int, dict[int, str]] = {unit: {} for unit in range(NUM_UNITS)}
    for number, run in enumerate(runs):
        for unit, digest in run.copies.get(moment, {}).items():
            found[unit][number] = digest
    return found


def check_copies(runs: list[Run], moment: str, at_least: int = 2) -> None:
    """Every unit is held by that many members at that moment, all with the same bits."""
    for unit, digests in copies_of(runs, moment).items():
        assert len(digests) >= at_least, f"{moment}: unit {unit} is held by {sorted(digests)} only"
        assert len(set(digests.values())) == 1, f"{moment}: unit {unit} differs: {digests}"


def check_gradients(runs: list[Run], steps: int) -> None:
    """Whoever owns or keeps a unit has its gradient, and the same one, when the step's vote has passed."""
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
"""(layout, each member's failure domain). In the last one both replicas of a stage share a domain: dp ranks lie side by side."""


@pytest.mark.parametrize(("layout", "domains"), SHAPES, ids=str)
def test_a_ward_is_its_owners_unit_after_every_step(layout: Layout, domains: tuple[int, ...], warm_workers: WarmWorkers) -> None:
    alone = lone_run(warm_workers, TIED)
    runs = run_series(warm_workers, TIED, [Segment(layout, TIED.steps, domains=domains)])
    assert losses_of(runs) == alone.losses, "keeping changes nothing"
    for step in range(1, TIED.steps + 1):
        check_copies(runs, f"after {step}")
    check_gradients(runs, TIED.steps)
    assert {run.covered[step] for run in runs for step in run.covered} == {ALL}
    assert {run.digest for run in runs} == {alone.digest}
    wards = [len(run.tags) for run in runs]
    assert sum(wards) > NUM_UNITS * layout.dp_degree, "somebody keeps a unit that it does not own"
    assert len({tag for run in runs for tag in run.tags.values()}) == 1, "frozen wards too are at the last step's tag"
