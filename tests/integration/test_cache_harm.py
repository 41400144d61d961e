"""Stores that answer wrongly or not: stopped, slow, flipping bits, mixing up values. Only misses, within the timeouts."""

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch
from cache_stack import (
    CacheStack,
    admitted_fraction,
    cache_stack,
    identity,
    start_cache_server,
    wait_patiently,
    wait_until,
)

from frostline_trainer.cache.boundary_cache import BoundaryCache
from frostline_trainer.cache.control import CALL_SECONDS
from frostline_trainer.cache.lane import SILENCE_SECONDS
from frostline_trainer.cache.prefetch import WAIT_SECONDS_MAX
from tests.in_time import fastest_of_three, in_time, within
from tests.integration.test_cache_faults import FLUSH_SECONDS, READ_BOUND_SECONDS, SHAPE, all_hit, assert_right, rows_of, store
from tests.redis_proxy import RedisProxy

AT_ONCE_SECONDS = 0.3
"""The bound for a call that never waits for another process, on a machine with a free core."""


@contextmanager
def proxied(stack: CacheStack, seed: int = 0) -> Iterator[RedisProxy]:
    """Restart the cache server so that all clients reach the shard through a proxy."""
    stack.server.terminate()
    assert stack.server.wait(60) == 0
    with RedisProxy(stack.shards[0], seed) as proxy:
        stack.server = start_cache_server(stack.run_dir, [proxy.shard])
        yield proxy


def read_and_time(cache: BoundaryCache, samples: list[int]) -> tuple[list[bool], float]:
    """Read, within the client's timeouts; assert that hits have the right values. Return the hits and the seconds."""
    out = torch.full((len(samples), *SHAPE), -1.0)
    started = time.monotonic()
    hits = cache.read(samples, [0] * len(samples), out)
    seconds = time.monotonic() - started
    assert_right(hits, out, samples)
    in_time(seconds, READ_BOUND_SECONDS + WAIT_SECONDS_MAX, "a read")
    return hits, seconds


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Stop a process (SIGSTOP) and wait until it stands."""
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)


@fastest_of_three
def test_a_stopped_redis_costs_one_silence_and_serves_again_when_it_goes_on(tmp_path: Path) -> None:
    """SIGSTOP: the kernel still accepts connections, but nothing answers on them."""
    with cache_stack(tmp_path) as stack:
        cache = stack.connect(SHAPE)
        stack.ready(cache, identity("stopped"))
        samples = list(range(16))
        store(cache, samples)
        stop(stack.shards[0].process)
        try:
            cache.prefetch(samples, [0] * 16)
            waits = []
            until = time.monotonic() + 3.0
            while time.monotonic() < until:
                with within(AT_ONCE_SECONDS, "a fill"):
                    cache.fill([99], [0], rows_of([99]))
                hits, seconds = read_and_time(cache, samples)
                waits.append(seconds)
                assert not any(hits)
            # One silence each for the prefetch and the read, then none.
            in_time(sum(waits), READ_BOUND_SECONDS + WAIT_SECONDS_MAX, "all reads together")
        finally:
            stack.shards[0].process.send_signal(signal.SIGCONT)
        wait_until(lambda: all_hit(cache, samples))


@fastest_of_three
def test_a_slow_redis_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    """Bytes trickle in: each pause is shorter than the timeout of a silence, so only the deadline of the whole read ends it."""
    with cache_stack(tmp_path) as stack, proxied(stack) as proxy:
        cache = stack.connect(SHAPE)
        stack.ready(cache, identity("slow"))
        samples = list(range(32))
        store(cache, samples)
        proxy.delay_seconds, proxy.chunk_bytes = SILENCE_SECONDS / 5, 2048
        hits, seconds = read_and_time(cache, samples)
        assert not all(hits)
        assert seconds > SILENCE_SECONDS, "it went on as long as something came"
        cache.prefetch(samples, [0] * 32)
        read_and_time(cache, samples)
        proxy.delay_seconds, proxy.chunk_bytes = 0.0, 65536
        wait_until(lambda: all_hit(cache, samples))


@fastest_of_three
def test_bits_that_flip_on_the_way_give_misses_and_never_another_value(tmp_path: Path) -> None:
    """Bits flip in both directions: in lengths, keys and commands as well as in values."""
    with cache_stack(tmp_path) as stack, proxied(stack, seed=7) as proxy:
        cache = stack.connect(SHAPE)
        name = identity("flips")
        stack.ready(cache, name)
        samples = list(range(48))
        store(cache, samples)
        proxy.chunk_bytes = 1024
        damaged = corrupt = 0
        until = time.monotonic() + 8.0
        while time.monotonic() < until or not (proxy.flipped > 10 and damaged > 0 and corrupt > 0):
            assert time.monotonic() < until + 60.0, f"{proxy.flipped} bits flipped, {damaged} misses, {corrupt} corrupt"
            proxy.flip_share = 0.01
            cache.fill(samples, [0] * 48, rows_of(samples))
            hits, _ = read_and_time(cache, samples)
            damaged += hits.count(False)
            corrupt += cache.take_counts().corrupt
            proxy.flip_share = 0.0
            wait_until(lambda: all(shard.up for shard in cache._shards()))
        assert cache.flush(FLUSH_SECONDS)
        store(cache, samples)


def test_a_whole_value_under_another_samples_key_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_patiently(monkeypatch)
    with cache_stack(tmp_path) as stack:
        cache = stack.connect(SHAPE)
        name = identity("swapped")
        stack.ready(cache, name)
        store(cache, [4, 5])
        cache.take_counts()
        client = stack.redis()
        four, five = client.get(name.key(4, 0)), client.get(name.key(5, 0))
        client.set(name.key(4, 0), five)
        client.set(name.key(5, 0), four)
        assert cache.read([4, 5], [0, 0], torch.empty(2, *SHAPE)) == [False, False]
        assert cache.take_counts().corrupt == 2
        store(cache, [4, 5])


@fastest_of_three
def test_a_cache_server_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP: the server accepts and does not answer. Clients go on with the shards that they know."""
    wait_patiently(monkeypatch)  # for Redis, which does not hang
    with cache_stack(tmp_path) as stack:
        cache, closing = stack.connect(SHAPE), stack.connect(SHAPE)
        stack.ready(cache, identity("hangs"))
        samples = list(range(8))
        store(cache, samples)
        stop(stack.server)
        try:
            wait_until(lambda: all_hit(cache, samples))
            with within(AT_ONCE_SECONDS, "what waits for no answer"):
                cache.set_boundary(identity("next", 4), identity("hangs"), 100)
                cache.fill(samples, [0] * 8, rows_of(samples))
                cache.drop_previous([7], [0])
            assert cache.flush(FLUSH_SECONDS)
            assert read_and_time(cache, samples)[0] == [False] * 8, "nothing is admitted yet at the new boundary"
            out = torch.empty(8, *SHAPE)
            assert cache.read_previous(samples, [0] * 8, out) == [True] * 7 + [False]
            assert torch.equal(out[:7], rows_of(samples)[:7])
            stack.opened.remove(closing)
            with within(3 * CALL_SECONDS + 1.0, "closing"):
                closing.close()
        finally:
            stack.server.send_signal(signal.SIGCONT)
        wait_until(lambda: admitted_fraction(cache) > 0.0)
        store(cache, samples)
