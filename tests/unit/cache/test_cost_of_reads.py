"""What a read costs a step, which the planner decides by."""

import time

import torch
from cache_stack import CacheStack, identity

from tests.unit.cache.test_boundary_cache import rows_of, store


def test_first_reads_which_no_prefetch_hides_are_not_in_the_cost_of_a_read(stack: CacheStack) -> None:
    """After a freeze or a reshape the first steps wait for all of their values, and later ones do not."""
    cache = stack.connect()
    stack.ready(cache, identity("first"))
    store(cache, [1, 2], rows_of([1, 2]))
    out = torch.empty(3, 8, 16)
    assert cache.read([1, 2], [0, 0], out[:2]) == [True, True]
    assert cache.profile().exposed_seconds_per_sample is None
    cache.prefetch([1, 2, 3], [0] * 3)
    started = time.monotonic()
    assert cache.read([1, 2, 3], [0] * 3, out) == [True, True, False]
    cost = cache.profile().exposed_seconds_per_sample
    assert cost is not None and 3 * cost <= time.monotonic() - started, "misses have their share of the wait"
    hidden = cache.profile().hidden_processor_seconds_per_sample
    assert hidden is not None and 0.0 < hidden < 1.0, "the thread's that read ahead"
    assert cache.read([1, 2], [0, 0], out[:2]) == [True, True]
    assert cache.profile().exposed_seconds_per_sample == cost, "they were taken"
    cache.prefetch_steps = 0
    assert cache.read([1, 2], [0, 0], out[:2]) == [True, True]
    assert cache.profile().exposed_seconds_per_sample != cost, "without prefetching every step waits like that"
