"""Faults of the cache: Redis killed, restarted empty, full, paused, replaced by junk. Speed changes, results never."""

import socket
import threading
import time
from pathlib import Path

import pytest
import torch
from cache_stack import cache_stack, identity, start_cache_server, wait_patiently, wait_until

from frostline_contract.cache_identity import shard_of
from frostline_controller.cluster.local.redis_process import start_redis
from frostline_trainer.cache.boundary_cache import BoundaryCache
from frostline_trainer.cache.lane import SILENCE_SECONDS
from tests.in_time import fastest_of_three, in_time

READ_BOUND_SECONDS = 2.5
"""The documented bound of read(): READ_SECONDS_MAX + one silence, and half a second for a loaded machine."""

SHAPE = (32, 64)
PAUSE_SECONDS = 3.0
"""Longer than what is to happen while a Redis pauses."""
FLUSH_SECONDS = 60.0


def rows_of(samples: list[int], shape: tuple[int, int] = SHAPE) -> torch.Tensor:
    return torch.stack([torch.full(shape, float(i)) + torch.arange(shape[1]) for i in samples])


def assert_right(hits: list[bool], out: torch.Tensor, samples: list[int]) -> None:
    for index, hit in enumerate(hits):
        assert not hit or torch.equal(out[index], rows_of([samples[index]])[0]), f"sample {samples[index]} is wrong"


def all_hit(cache: BoundaryCache, samples: list[int]) -> bool:
    """Read; assert that hits have the right values. Return whether all are."""
    out = torch.full((len(samples), *SHAPE), -1.0)
    hits = cache.read(samples, [0] * len(samples), out)
    assert_right(hits, out, samples)
    return all(hits)


def store(cache: BoundaryCache, samples: list[int]) -> None:
    """Fill until all are there: on a busy machine a sound Redis may answer so late that a fill or a read is given up."""

    def stored() -> bool:
        cache.fill(samples, [0] * len(samples), rows_of(samples))
        return cache.flush(FLUSH_SECONDS) and all_hit(cache, samples)

    wait_until(stored)


@fastest_of_three
def test_killing_a_shard_in_the_middle_of_reads_and_restarting_it_empty(tmp_path: Path) -> None:
    with cache_stack(tmp_path, num_shards=2) as stack:
        cache = stack.connect(SHAPE)
        name = identity("kill")
        stack.ready(cache, name)
        samples = list(range(64))
        store(cache, samples)
        out = torch.empty(64, *SHAPE)
        victim = stack.shards[0]
        killer = threading.Timer(0.1, victim.process.kill)
        killer.start()
        slowest, seen_dead = 0.0, False
        until = time.monotonic() + 1.0
        while time.monotonic() < until or (not seen_dead and time.monotonic() < until + 60.0):
            out.fill_(-1.0)
            started = time.monotonic()
            hits = cache.read(samples, [0] * 64, out)
            slowest = max(slowest, time.monotonic() - started)
            assert_right(hits, out, samples)
            seen_dead |= hits == [shard_of(name.key(sample, 0), 2) == 1 for sample in samples]
        killer.join()
        assert seen_dead, "the keys of the living shard go on hitting"
        in_time(slowest, READ_BOUND_SECONDS, "a read")
        stack.shards[0] = start_redis(tmp_path / "redis", 64 << 20, victim.port, victim.password)
        wait_until(lambda: all(shard.up for shard in cache._shards()))
        assert sum(cache.read(samples, [0] * 64, out)) < 64, "restarted empty"
        store(cache, samples)


def test_a_full_redis_refuses_fills_and_goes_on_serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wait_patiently(monkeypatch)
    with cache_stack(tmp_path, 1, 8 << 20) as stack:
        cache = stack.connect((256, 256))
        stack.ready(cache, identity("full"), values=4)
        for index in range(10):
            stack.redis().set(f"somebody else's {index}", b"x" * 500_000)
        samples = list(range(40))
        for start in range(0, 40, 8):
            cache.fill(samples[start : start + 8], [0] * 8, rows_of(samples[start : start + 8], (256, 256)))
        assert cache.flush(FLUSH_SECONDS)
        counts = cache.take_counts()
        assert counts.fills > 0
        assert counts.refused_fills > 0
        assert counts.fills + counts.refused_fills + counts.dropped_fills == 40
        out = torch.empty(40, 256, 256)
        hits = cache.read(samples, [0] * 40, out)
        assert sum(hits) == counts.fills
        assert all(torch.equal(out[i], rows_of([i], (256, 256))[0]) for i in samples if hits[i])


@fastest_of_three
def test_a_paused_redis_costs_one_short_timeout_and_then_nothing(tmp_path: Path) -> None:
    with cache_stack(tmp_path) as stack:
        cache = stack.connect(SHAPE)
        stack.ready(cache, identity("paused"))
        store(cache, [1])
        out = torch.empty(1, *SHAPE)
        paused = time.monotonic()
        stack.redis().execute_command("CLIENT", "PAUSE", f"{PAUSE_SECONDS * 1000:.0f}")
        started = time.monotonic()
        hits = [cache.read([1], [0], out)]
        first = time.monotonic() - started
        started = time.monotonic()
        hits += [cache.read([1], [0], out) for _ in range(10)]
        others = time.monotonic() - started
        in_time(time.monotonic() - paused, PAUSE_SECONDS, "reading during the pause")
        assert hits == [[False]] * 11
        assert first > SILENCE_SECONDS * 0.8
        in_time(first, READ_BOUND_SECONDS, "the first read")
        in_time(others, 0.2, "reading during the back-off, when keys miss at once,")
        wait_until(lambda: all_hit(cache, [1]))


def test_a_shard_that_talks_junk_is_left_alone(tmp_path: Path) -> None:
    with cache_stack(tmp_path) as stack, socket.create_server(("127.0.0.1", 0)) as listener:
        stop = threading.Event()

        def junk() -> None:
            listener.settimeout(0.1)
            while not stop.is_set():
                try:
                    peer, _ = listener.accept()
                except TimeoutError:
                    continue
                with peer:
                    peer.sendall(b"+OK\r\n$16416\r\n" + b"\xff\r\n" * 4000)

        thread = threading.Thread(target=junk, daemon=True)
        thread.start()
        stack.server.terminate()
        assert stack.server.wait(60) == 0
        port = listener.getsockname()[1]
        real = stack.shards[0]
        fake = type(real)(real.process, "127.0.0.1", port, real.password, real.log, real.config)
        stack.server = start_cache_server(tmp_path, [real, fake])
        cache = stack.connect(SHAPE)
        name = identity("junk")
        stack.ready(cache, name)
        samples = list(range(30))
        there = [shard_of(name.key(sample, 0), 2) == 0 for sample in samples]
        honest = [sample for sample in samples if there[sample]]
        for _ in range(3):
            cache.fill(samples, [0] * 30, rows_of(samples))
            assert cache.flush(FLUSH_SECONDS)
            store(cache, honest)
            out = torch.empty(30, *SHAPE)
            hits = cache.read(samples, [0] * 30, out)
            assert not any(hit and not expected for hit, expected in zip(hits, there, strict=True))
            assert_right(hits, out, samples)
        stop.set()
        thread.join()


def test_a_cache_server_that_is_killed_and_comes_back_elsewhere_is_found_again(tmp_path: Path) -> None:
    with cache_stack(tmp_path) as stack:
        cache = stack.connect(SHAPE)
        stack.ready(cache, identity("server"))
        store(cache, [1, 2])
        before = stack.address
        stack.server.kill()
        stack.server.wait(60)
        wait_until(lambda: all_hit(cache, [1, 2]))  # the data path needs no cache server
        stack.server = start_cache_server(tmp_path, stack.shards)
        assert stack.address != before
        stack.ready(cache, identity("after"))
        store(cache, [3])


@fastest_of_three
def test_a_step_never_waits_for_fills(tmp_path: Path) -> None:
    with cache_stack(tmp_path) as stack:
        cache = stack.connect((256, 1024))
        stack.ready(cache, identity("queue"), values=30)
        stack.redis().execute_command("CLIENT", "PAUSE", f"{PAUSE_SECONDS * 1000:.0f}")
        rows = rows_of(list(range(8)), (256, 1024))
        started = time.monotonic()
        for _ in range(30):
            cache.fill(list(range(8)), [0] * 8, rows)
        elapsed = time.monotonic() - started
        assert cache.flush(FLUSH_SECONDS)
        counts = cache.take_counts()
        assert counts.dropped_fills > 0, "30 x 8 MiB do not fit into the queue"
        assert counts.fills + counts.dropped_fills + counts.refused_fills == 240
        in_time(elapsed, 0.7, "30 fills")
