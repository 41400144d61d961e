"""A cache that several runs share: planned faults of a run on the cache are carried out by `SharedCache`, which restarts it."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis

from frostline_contract.job.cluster import CacheSection
from frostline_contract.run_directory import RunDirectory
from frostline_controller.cluster.local.shared_cache import SharedCache, breakable_by_runs


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[SharedCache]:
    cache = SharedCache(tmp_path, CacheSection(memory_bytes=64 << 20))
    cache.start()
    yield cache
    cache.stop()


def test_a_run_breaks_the_cache_by_its_own_process_once(kept: SharedCache, tmp_path: Path) -> None:
    places, breaks = RunDirectory(tmp_path), breakable_by_runs(tmp_path)
    shard = client(tmp_path)
    shard.set("a value", 1)
    before, address = shard.info("server")["run_id"], places.cache_address.read_text()
    breaks["kill_redis"]()
    until(kept, lambda: run_id(shard) not in ("", before))
    assert shard.dbsize() == 0, "it comes back empty, at its address"
    breaks["kill_cache_server"]()
    until(kept, lambda: places.cache_address.exists() and places.cache_address.read_text() not in ("", address))
    again, found = run_id(shard), places.cache_address.read_text()
    for _ in range(5):
        kept.advance()
        time.sleep(0.05)
    assert (run_id(shard), places.cache_address.read_text()) == (again, found), "a fault happens once"


def client(folder: Path) -> redis.Redis:
    """Return a client of the cache's only shard; its port is in the command line of the cache server."""
    alive = [one.cmdline() for one in psutil.Process().children() if one.status() != psutil.STATUS_ZOMBIE]
    (words,) = [words for words in alive if "frostline_cache_server" in " ".join(words)]
    port = words[words.index("--shards") + 1].rpartition(":")[2]
    return redis.Redis(port=int(port), password=RunDirectory(folder).redis_password.read_text())


def run_id(shard: redis.Redis) -> str:
    try:
        return str(shard.info("server")["run_id"])
    except redis.ConnectionError:
        return ""


def until(kept: SharedCache, true: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        kept.advance()
        time.sleep(0.05)
