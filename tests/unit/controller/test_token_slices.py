"""The dynamic programme over cells against every cut that there is."""

import random
from itertools import product

import numpy as np
import pytest

from frostline_controller.planner.token_slices import best_slices, measured_table, placed, slice_table

CASES = 120


def brute(table: np.ndarray, stages: int, micro_batches: int) -> float:
    """The least seconds over all compositions of the cells."""
    cells, best = table.shape[1], float("inf")
    for cuts in product((False, True), repeat=cells - 1):
        bounds = [0, *(place for place, cut in enumerate(cuts, start=1) if cut), cells]
        seconds = [table[high - low - 1, low] for low, high in zip(bounds, bounds[1:], strict=False)]
        best = min(best, micro_batches * sum(seconds) + (stages - 1) * max(seconds))
    return best


def cases():
    """Tables with and without any order in them; every second one is of smooth costs."""
    rng = random.Random(7)
    for case in range(CASES):
        cells, stages, micro_batches = rng.randint(1, 8), rng.randint(1, 12), rng.choice((1, 1, 2, 5))
        call, token, context = rng.uniform(0, 3), rng.uniform(0.1, 1), rng.uniform(0, 0.1)
        smooth = slice_table(cells, lambda k, j, a=call, b=token, c=context: a + b * k + c * k * j)
        rough = slice_table(cells, lambda k, j: rng.uniform(0.2, 4))
        yield (smooth if case % 2 else rough), stages, micro_batches


def test_the_programme_finds_what_trying_every_cut_finds() -> None:
    for table, stages, micro_batches in cases():
        found = best_slices(table, stages, micro_batches)
        assert found.seconds == pytest.approx(brute(table, stages, micro_batches), rel=1e-12)
        seconds = [table[length - 1, before] for length, before in placed(found.lengths)]
        assert found.seconds == pytest.approx(micro_batches * sum(seconds) + (stages - 1) * max(seconds), rel=1e-12)


def test_buckets_try_fewer_bounds_and_keep_the_limit() -> None:
    width = 0.3
    fewer = 0
    for table, stages, micro_batches in cases():
        near, exact = best_slices(table, stages, micro_batches, width), best_slices(table, stages, micro_batches)
        assert near.seconds <= exact.seconds + stages * width + 1e-12
        fewer += near.bounds_tried < exact.bounds_tried
    assert fewer > CASES / 3


def test_the_last_of_a_bucket_is_kept_since_the_first_would_refuse_the_best_cut() -> None:
    # 0.5 and 0.8 s fall into one bucket; a bound of 0.5 s leaves no cut but the slice of two cells, which takes 5 s.
    table = np.array([[0.5, 0.8], [5.0, np.inf]])
    assert best_slices(table, stages=4, bucket_seconds=0.5).lengths == (1, 1)


def test_many_stages_make_slices_short_and_many_micro_batches_make_them_long() -> None:
    table = measured_table([1.0] * 16, message_seconds=0.5)
    counts = [len(best_slices(table, stages=8, micro_batches=m).lengths) for m in (1, 40, 1000)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > 4
    assert counts[-1] == 1


def test_cells_that_grow_along_the_sequence_are_grouped_into_slices_of_like_seconds() -> None:
    cells = [1.0 + 0.25 * place for place in range(12)]
    found = best_slices(measured_table(cells, message_seconds=0.4), stages=6)
    assert list(found.lengths) == sorted(found.lengths, reverse=True)
    assert found.lengths[0] > found.lengths[-1]


def test_nothing_to_cut_is_an_error_with_the_numbers() -> None:
    with pytest.raises(ValueError, match="0 stages"):
        best_slices(measured_table([1.0]), stages=0)
