"""A real cache for tests, as a run has one: Redis shards and a cache server process."""

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import redis
import torch

from frostline_contract.cache_identity import CacheIdentity
from frostline_contract.job.cluster import CacheSection
from frostline_contract.run_directory import RunDirectory
from frostline_controller.cluster.local.redis_process import RedisProcess, start_redis
from frostline_rpc.auth import WORKER, Tokens
from frostline_trainer.cache import lane, prefetch, values, writer
from frostline_trainer.cache.boundary_cache import BoundaryCache

START_SECONDS = 180.0
"""Far above what the cache server needs to start, or to admit a boundary, on a busy machine."""
PATIENT_SECONDS = 60.0
"""A silence that no sound Redis keeps, however busy its machine is."""
GIVEN_UP_AFTER = (
    (lane, "SILENCE_SECONDS"),
    (values, "READ_SECONDS_MAX"),
    (values, "WRITE_SECONDS_MAX"),
    (writer, "WRITE_SECONDS_MAX"),
    (prefetch, "WAIT_SECONDS_MAX"),
)
"""The product's limits, after which a fill or a read is given up and its values miss."""


@dataclass
class CacheStack:
    """Shards and cache server of one run directory."""

    run_dir: Path
    shards: list[RedisProcess]
    tokens: Tokens
    server: subprocess.Popen[bytes]
    opened: list[BoundaryCache] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def address(self) -> str:
        return (self.run_dir / "cache.address").read_text().strip()

    def redis(self, shard: int = 0) -> redis.Redis:
        """Return another client of a shard, to inspect and to damage values."""
        return redis.Redis(port=self.shards[shard].port, password=self.shards[shard].password)

    def connect(
        self, shape: tuple[int, int] = (8, 16), dtype: torch.dtype = torch.float32, keep_previous: bool = False,
        names: Sequence[int] | None = None, own_tokens: np.ndarray | None = None, **section: object,
    ) -> BoundaryCache:  # fmt: skip
        """Return a worker's cache, which is closed with the stack."""
        token, worker = self.tokens.by_role[WORKER], f"worker-{next(self.numbers)}"
        cache = BoundaryCache(
            "", token, worker, CacheSection(**section), shape, dtype, self.run_dir, keep_previous=keep_previous, names=names,
            own_tokens=own_tokens,
        )  # fmt: skip
        self.opened.append(cache)
        return cache

    def release(self) -> None:
        """Close all caches that were connected, after their boundaries are released."""
        for cache in self.opened:
            cache.clear_boundary()
            cache.close()
        self.opened.clear()

    def ready(
        self, cache: BoundaryCache, identity: CacheIdentity, previous: CacheIdentity | None = None, values: int = 100
    ) -> None:
        """Set the boundary and wait until the cache server has admitted it. Part of the set-up: its time is not tested."""
        cache.set_boundary(identity, previous, values)
        wait_until(lambda: admitted_fraction(cache) > 0.0 and cache.usable, START_SECONDS)


def admitted_fraction(cache: BoundaryCache) -> float:
    """Return the share of the current boundary's values that may be stored; 0 until the cache server has answered."""
    boundary = cache._control.boundary
    return boundary.fraction if boundary is not None else 0.0


def wait_until(true: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    """Wait until `true()` holds; the test fails where it stays false."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


def start_cache_server(run_dir: Path, shards: list[RedisProcess], *options: str) -> subprocess.Popen[bytes]:
    """Start the cache server and wait for its address."""
    (run_dir / "cache.address").unlink(missing_ok=True)
    command = [sys.executable, "-m", "frostline_cache_server", "--run-dir", str(run_dir), "--shards"]
    command += [",".join(shard.address for shard in shards), *options]
    with (run_dir / "cache_server.log").open("ab") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    try:
        wait_until(lambda: (run_dir / "cache.address").exists() or server.poll() is not None, START_SECONDS)
        assert server.poll() is None, (run_dir / "cache_server.log").read_text()
    except AssertionError:
        server.kill()
        server.wait()
        raise
    return server


def wait_patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be given up because a Redis is silent for a moment: for tests about what a cache holds."""
    for module, name in GIVEN_UP_AFTER:
        monkeypatch.setattr(module, name, PATIENT_SECONDS)


@contextmanager
def cache_stack(run_dir: Path, num_shards: int = 1, shard_bytes: int = 64 << 20, *options: str) -> Iterator[CacheStack]:
    """Yield a stack that ends with the block."""
    tokens = Tokens.create()
    tokens.write(run_dir / "tokens.json")
    shards = [start_redis(run_dir / "redis", shard_bytes)]
    shards += [start_redis(run_dir / "redis", shard_bytes, password=shards[0].password) for _ in range(num_shards - 1)]
    (run_dir / "redis.password").write_text(shards[0].password)
    RunDirectory(run_dir).cache_secret.write_text("the secret of this stack's users")
    server = None
    stack = None
    try:
        server = start_cache_server(run_dir, shards, *options)
        stack = CacheStack(run_dir, shards, tokens, server)
        yield stack
    finally:
        if stack:
            stack.release()
        if stack and stack.server.poll() is None:
            stack.server.terminate()
            stack.server.wait(60)
        for shard in stack.shards if stack else shards:
            shard.stop()


def identity(name: str, boundary: int = 2) -> CacheIdentity:
    return CacheIdentity(prefix_revision=name, dataset_digest="d", split="train", boundary=boundary)
