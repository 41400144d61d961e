"""What a read costs a step, which the planner decides by."""

import time

import pytest
import torch
from cache_stack import CacheStack, identity

from frostline_trainer.cache import prefetch as prefetch_module
from tests.unit.cache.test_boundary_cache import rows_of, store


def test_first_reads_which_no_prefetch_hides_are_not_in_the_cost_of_a_read(stack: CacheStack) -> None:
    """After a freeze or a reshape the first steps wait for all of their values, and later ones do not."""
    cache = stack.connect()
    stack.ready(cache, identity("first"))
    store(cache, [1, 2], rows_of([1, 2]))
    out = torch.empty(3, 8, 16)
    for _ in range(cache.prefetch_steps):
        assert cache.profile().exposed_seconds_per_sample is None
        assert cache.read([1, 2], [0, 0], out[:2]) == [True, True]
    cache.prefetch([1, 2, 3], [0] * 3)
    started = time.monotonic()
    assert cache.take([1, 2, 3], [0] * 3, torch.device("cpu")) is None, "one is missing"
    assert cache.read([1, 2, 3], [0] * 3, out) == [True, True, False]
    found = cache.profile()
    assert found.exposed_seconds_per_sample is not None
    assert 3 * found.exposed_seconds_per_sample <= time.monotonic() - started, "misses have their share of the wait"
    assert found.own_processor_seconds_per_sample is not None and found.hidden_processor_seconds_per_sample is not None
    assert 0.0 < found.own_processor_seconds_per_sample < 1.0 and 0.0 < found.hidden_processor_seconds_per_sample < 1.0


def test_where_values_are_too_large_to_be_read_ahead_waits_count(stack: CacheStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch_module, "PREFETCH_BYTES_MAX", 1)
    cache = stack.connect()
    stack.ready(cache, identity("large"))
    store(cache, [1, 2], rows_of([1, 2]))
    out = torch.empty(2, 8, 16)
    for _ in range(cache.prefetch_steps + 1):
        cache.prefetch([1, 2], [0, 0])
        assert cache.take([1, 2], [0, 0], torch.device("cpu")) is None
        assert cache.read([1, 2], [0, 0], out) == [True, True]
    assert cache.profile().exposed_seconds_per_sample is not None
