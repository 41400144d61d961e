"""A real redis-server for tests: fixtures that a conftest imports."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frostline_controller.cluster.local import redis_process
from frostline_controller.cluster.local.redis_process import RedisProcess, start_redis

redis_process.START_SECONDS = 120.0
"""Far above what a server needs to start on a busy machine, in all tests."""


@pytest.fixture
def start_shard(tmp_path: Path) -> Iterator[Callable[..., RedisProcess]]:
    """Yield a function that starts Redis servers which end with the test: start_shard(memory_bytes=..., port=...)."""
    started: list[RedisProcess] = []

    def start(memory_bytes: int = 64 << 20, port: int = 0, password: str | None = None) -> RedisProcess:
        started.append(start_redis(tmp_path / "redis", memory_bytes, port, password))
        return started[-1]

    yield start
    for redis in started:
        redis.stop()


@pytest.fixture
def redis_server(start_shard: Callable[..., RedisProcess]) -> RedisProcess:
    """Return one Redis of 64 MiB for one test."""
    return start_shard()


__all__ = ["redis_server", "start_shard"]
