"""The sweeper against a real Redis: it removes what was left behind, and nothing else."""

import asyncio
from collections.abc import Callable

import redis

from frostline_cache_server.boundaries import Boundaries
from frostline_cache_server.shards import ShardMap
from frostline_cache_server.sweeper import Sweeper
from frostline_contract.cache_identity import CacheIdentity
from frostline_controller.cluster.local.redis_process import RedisProcess

USABLE = 32 << 20


def identity(name: str, boundary: int = 2) -> CacheIdentity:
    return CacheIdentity(prefix_revision=name, dataset_digest="d", split="train", boundary=boundary)


def fill(server: RedisProcess, name: CacheIdentity, values: int, size: int = 1000) -> redis.Redis:
    client = redis.Redis(port=server.port, password=server.password)
    for sample in range(values):
        client.set(name.key(sample, 0), b"x" * size)
    return client


def count(client: redis.Redis, name: CacheIdentity) -> int:
    return sum(key[3:19] == name.namespace() for key in client.scan_iter("*"))


async def sweep(server: RedisProcess, books: Boundaries, moments: list[float], grace_seconds: float = 60.0) -> list[int]:
    shards = ShardMap([("127.0.0.1", server.port)], server.password)
    sweeper = Sweeper(shards, books, grace_seconds)
    removed = []
    for now in moments:
        await shards.refresh()
        removed.append(await sweeper.sweep(USABLE, now))
    await shards.close()
    return removed


def test_a_left_boundary_goes_when_its_lease_ends_and_late_writes_go_too(redis_server: RedisProcess) -> None:
    old, new = identity("old[*?\\", 2), identity("new", 3)
    books = Boundaries()
    books.admit(old, 1200, 1000, USABLE, now=0.0)
    books.lease(old, "w", 50.0, now=0.0)
    books.advance(old, new, USABLE, now=1.0)
    books.lease(new, "w", 1e6, now=1.0)
    client = fill(redis_server, old, 1200)
    fill(redis_server, new, 300)
    client.set("a stranger's key", "stays")
    assert asyncio.run(sweep(redis_server, books, [40.0, 51.0])) == [0, 1200]
    assert (count(client, old), count(client, new), client.exists("a stranger's key")) == (0, 300, 1)
    fill(redis_server, old, 2)
    assert asyncio.run(sweep(redis_server, books, [60.0])) == [2]


def test_unknown_values_go_only_under_pressure_and_after_a_grace(start_shard: Callable[..., RedisProcess]) -> None:
    server = start_shard()
    stray = identity("another server's")
    client = fill(server, stray, 30, size=1_000_000)
    assert asyncio.run(sweep(server, Boundaries(), [0.0, 30.0, 61.0, 62.0])) == [0, 0, 30, 0]
    fill(server, stray, 10, size=1_000_000)
    assert asyncio.run(sweep(server, Boundaries(), [0.0, 100.0])) == [0, 0], "10 of 32 MiB is no pressure"
    assert count(client, stray) == 10


def test_a_dead_redis_ends_no_sweep(redis_server: RedisProcess) -> None:
    books = Boundaries()
    books.admit(identity("old"), 10, 1000, USABLE, now=0.0)
    books.advance(identity("old"), identity("new"), USABLE, now=0.0)
    redis_server.process.kill()
    redis_server.process.wait()
    assert asyncio.run(sweep(redis_server, books, [500.0, 501.0])) == [0, 0]
