"""Real Redis servers, and one whole cache that the tests of a module share (each with identities of its own)."""

from collections.abc import Iterator

import pytest
from cache_stack import CacheStack, cache_stack, wait_patiently
from redis_fixture import redis_server, start_shard

__all__ = ["redis_server", "start_shard"]


@pytest.fixture(scope="module")
def running_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CacheStack]:
    """Two shards of 64 MiB and a cache server."""
    with cache_stack(tmp_path_factory.mktemp("cache"), num_shards=2) as running:
        yield running


@pytest.fixture
def stack(running_stack: CacheStack, monkeypatch: pytest.MonkeyPatch) -> Iterator[CacheStack]:
    """The module's stack, for tests about what it holds: nothing is given up. What a test connected is closed behind it."""
    wait_patiently(monkeypatch)
    yield running_stack
    running_stack.release()
