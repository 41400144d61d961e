"""Reshapes from each layout of four workers to each other one, a step in each: the digest of one worker after every step.

Layouts differ in pipeline, replicas, groups of columns and levels, shared state and divided samples.
"""

from collections.abc import Sequence
from itertools import pairwise, permutations

import pytest

from tests.exact_cases import Case
from tests.hand_made_plans import Layout, Segment, grouped, run_series
from tests.integration.test_buddies import check_copies
from tests.integration.test_pieces import whole
from tests.integration.test_reshape_moves import losses_of
from tests.warm_workers import WarmWorkers

LAYOUTS = (
    Layout(1, 1),
    grouped(1, 2, 2),
    Layout(1, 4, shard="step"),
    Layout(2, 2, shard="use"),
    grouped(1, 1, 4),
    grouped(2, 1, 2, tensor_rows="split"),
    grouped(1, 2, 2, shard="step"),
    grouped(1, 2, 2, shard="use"),
    grouped(1, 2, 2, shard="step", tensor_rows="split"),
    grouped(1, 2, 2, shard="use", tensor_rows="split"),
)
"""State in several ranges of each tile, and of the rest."""
TILED_LAYOUTS = (
    Layout(1, 1),
    Layout(1, 3),
    Layout(4, 1),
    grouped(1, 1, 4),
    grouped(2, 1, 2),
    grouped(1, 2, 2),
    grouped(2, 1, 2, tensor_rows="split"),
    grouped(1, 2, 2, tensor_rows="split"),
)
"""State in a piece of each tile and one of the rest, which replicas cannot share out."""
LEVEL_LAYOUTS = (
    Layout(1, 1),
    grouped(1, 1, 2, depth=2),
    grouped(1, 1, 1, depth=4),
    grouped(1, 1, 4),
    grouped(2, 1, 1, depth=2),
    grouped(1, 2, 1, depth=2, shard="step"),
    grouped(1, 2, 1, depth=2, shard="use"),
    grouped(1, 2, 2, shard="use"),
    Layout(2, 2, shard="step"),
)
"""State in several ranges of each tile of both widths, and of the rest; no samples are divided."""
ROWS, LEVELS = {"row_tiles": 2}, {"hidden_tiles": 4}


def walk(count: int) -> list[int]:
    """Return a walk over nodes from 0 back to 0 that takes each ordered pair of them once (Hierholzer's algorithm)."""
    left = {node: [other for other in range(count) if other != node] for node in range(count)}
    path, found = [0], list[int]()
    while path:
        if left[path[-1]]:
            path.append(left[path[-1]].pop())
        else:
            found.append(path.pop())
    return found[::-1]


@pytest.mark.parametrize("count", [2, 3, len(TILED_LAYOUTS), len(LEVEL_LAYOUTS), len(LAYOUTS)])
def test_the_walk_takes_each_pair_once(count: int) -> None:
    assert sorted(pairwise(walk(count))) == sorted(permutations(range(count), 2))


def freezing_over(steps: int) -> tuple[tuple[int, int], ...]:
    """Return freezes and thaws at steps that are spread over a run of some length."""
    return tuple((1 + quarter * steps // 4, point) for quarter, point in enumerate((0, 1, 3, 0)) if quarter)


def journey(layouts: Sequence[Layout], case: Case) -> list[Segment]:
    """Return a segment of one step for each layout; workers change places, and two failure domains give each piece a buddy."""
    segments = []
    for step, layout in enumerate(layouts, 1):
        size = layout.shape.world_size
        numbers = tuple((place * (1, 3)[step % 2] + step) % 4 for place in range(size))
        settled = Layout(**(vars(layout) | {"workers": numbers}))
        domains = tuple(2 * place // size for place in range(size))
        segments.append(Segment(settled, step, case.freeze_point_at(step - 1), domains=domains))
    return segments


SAMPLE = (0, 7, 5, 9, 4, 8, 3, 9, 1, 7, 2)
"""Groups that gather weights at each use, and groups that divide samples and share state out, from and to all other kinds."""
WALK_SECONDS = 1500.0
"""A walk of 72 steps takes four minutes on a quiet machine, and one of 90 more."""
WHOLE_WALK = (pytest.mark.wide, pytest.mark.timeout(2 * WALK_SECONDS))
WALKS = [
    (LAYOUTS, SAMPLE, 4, ROWS),
    pytest.param(LAYOUTS, walk(len(LAYOUTS)), 4, ROWS, marks=WHOLE_WALK),
    pytest.param(TILED_LAYOUTS, walk(len(TILED_LAYOUTS)), 1, ROWS, marks=WHOLE_WALK),
    pytest.param(LEVEL_LAYOUTS, walk(len(LEVEL_LAYOUTS)), 2, LEVELS, marks=WHOLE_WALK),
]


@pytest.mark.parametrize(("layouts", "order", "ranges", "cut"), WALKS, ids=["a sample", "in ranges", "by tile", "levels"])
def test_a_reshape_from_each_layout_to_each_other_changes_no_bit(
    layouts: Sequence[Layout], order: Sequence[int], ranges: int, cut: dict[str, int], warm_workers: WarmWorkers
) -> None:
    steps = len(order)
    case = Case("gpt2_tied", inner_tiles=4, state_ranges=ranges, steps=steps, freezing=freezing_over(steps), audit_every=5, **cut)
    (alone,) = run_series(warm_workers, case, [Segment(Layout(1, 1), steps)], digest_steps=True, seconds=WALK_SECONDS)
    segments = journey([layouts[number] for number in order], case)
    runs = run_series(warm_workers, case, segments, digest_steps=True, seconds=WALK_SECONDS)
    for step, segment in enumerate(segments, 1):
        before = segments[step - 2].layout if step > 1 else "the start"
        found = {run.digests[step] for run in runs if step in run.digests}
        assert found == {alone.digests[step]}, f"step {step}: {segment.layout} after {before}"
        if segment.layout.shape.world_size > 1:
            check_copies(runs, f"after {step}")
    assert losses_of(runs) == alone.losses
    assert whole(runs) == alone.units
    assert {run.guard for run in runs if run.units} == {alone.guard}
