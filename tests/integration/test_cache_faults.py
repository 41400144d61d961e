"""What befalls a cache: Redis killed, restarted empty, full, paused, replaced by junk. Speed changes, results never."""

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from cache_stack import CacheStack, cache_stack, identity, start_cache_server, wait_until

from frostline_contract.cache_identity import shard_of
from frostline_controller.local.redis_process import start_redis
from frostline_trainer.cache.boundary_cache import BoundaryCache
from frostline_trainer.cache.control import CALL_SECONDS
from frostline_trainer.cache.lane import SILENCE_SECONDS
from frostline_trainer.cache.prefetch import WAIT_SECONDS_MAX
from tests.redis_proxy import RedisProxy

READ_BOUND_SECONDS = 2.5
"""What read() states: READ_SECONDS_MAX + one silence, and half a second for a loaded machine."""

AT_ONCE_SECONDS = 0.3
"""What never waits for anybody, on a loaded machine."""

SHAPE = (32, 64)


def rows_of(samples: list[int], shape: tuple[int, int] = SHAPE) -> torch.Tensor:
    return torch.stack([torch.full(shape, float(i)) + torch.arange(shape[1]) for i in samples])


def assert_right(hits: list[bool], out: torch.Tensor, samples: list[int]) -> None:
    for index, hit in enumerate(hits):
        assert not hit or torch.equal(out[index], rows_of([samples[index]])[0]), f"sample {samples[index]} is wrong"


def test_killing_a_shard_in_the_middle_of_reads_and_restarting_it_empty(tmp_path: Path) -> None:
    with cache_stack(tmp_path, num_shards=2) as stack:
        cache = stack.connect(SHAPE)
        name = identity("kill")
        stack.ready(cache, name)
        samples = list(range(64))
        cache.fill(samples, [0] * 64, rows_of(samples))
        assert cache.flush()
        out = torch.empty(64, *SHAPE)
        assert cache.read(samples, [0] * 64, out) == [True] * 64
        victim = stack.shards[0]
        killer = threading.Timer(0.1, victim.process.kill)
        killer.start()
        slowest, seen_dead = 0.0, False
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            out.fill_(-1.0)
            started = time.monotonic()
            hits = cache.read(samples, [0] * 64, out)
            slowest = max(slowest, time.monotonic() - started)
            assert_right(hits, out, samples)
            seen_dead |= hits == [shard_of(name.key(sample, 0), 2) == 1 for sample in samples]
        killer.join()
        assert seen_dead, "the keys of the living shard go on hitting"
        assert slowest < READ_BOUND_SECONDS
        stack.shards[0] = start_redis(tmp_path / "redis", 64 << 20, victim.port, victim.password)
        wait_until(lambda: all(shard.up for shard in cache._shards()), 15.0)
        assert sum(cache.read(samples, [0] * 64, out)) < 64, "restarted empty"
        cache.fill(samples, [0] * 64, rows_of(samples))
        assert cache.flush()
        assert cache.read(samples, [0] * 64, out) == [True] * 64
        assert torch.equal(out, rows_of(samples))


def test_a_full_redis_refuses_fills_and_goes_on_serving(tmp_path: Path) -> None:
    with cache_stack(tmp_path, 1, 8 << 20) as stack:
        cache = stack.connect((256, 256))
        stack.ready(cache, identity("full"), values=4)
        for index in range(10):
            stack.redis().set(f"somebody else's {index}", b"x" * 500_000)
        samples = list(range(40))
        for start in range(0, 40, 8):
            cache.fill(samples[start : start + 8], [0] * 8, rows_of(samples[start : start + 8], (256, 256)))
        assert cache.flush()
        counts = cache.take_counts()
        assert counts.fills > 0
        assert counts.refused_fills > 0
        assert counts.fills + counts.refused_fills + counts.dropped_fills == 40
        out = torch.empty(40, 256, 256)
        hits = cache.read(samples, [0] * 40, out)
        assert sum(hits) == counts.fills
        assert all(torch.equal(out[i], rows_of([i], (256, 256))[0]) for i in samples if hits[i])


def test_a_paused_redis_costs_one_short_timeout_and_then_nothing(tmp_path: Path) -> None:
    with cache_stack(tmp_path) as stack:
        cache = stack.connect(SHAPE)
        stack.ready(cache, identity("paused"))
        cache.fill([1], [0], rows_of([1]))
        assert cache.flush()
        out = torch.empty(1, *SHAPE)
        assert cache.read([1], [0], out) == [True]
        stack.redis().execute_command("CLIENT", "PAUSE", "1200")
        started = time.monotonic()
        assert cache.read([1], [0], out) == [False]
        first = time.monotonic() - started
        started = time.monotonic()
        for _ in range(10):
            assert cache.read([1], [0], out) == [False]
        assert SILENCE_SECONDS * 0.8 < first < READ_BOUND_SECONDS
        assert time.monotonic() - started < 0.2, "during the back-off keys miss at once"
        wait_until(lambda: cache.read([1], [0], out) == [True])
        assert torch.equal(out, rows_of([1]))


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
        assert stack.server.wait(10) == 0
        port = listener.getsockname()[1]
        real = stack.shards[0]
        fake = type(real)(real.process, "127.0.0.1", port, real.password, real.log, real.config)
        stack.server = start_cache_server(tmp_path, [real, fake])
        cache = stack.connect(SHAPE)
        name = identity("junk")
        stack.ready(cache, name)
        samples = list(range(30))
        for _ in range(3):
            cache.fill(samples, [0] * 30, rows_of(samples))
            assert cache.flush()
            out = torch.empty(30, *SHAPE)
            hits = cache.read(samples, [0] * 30, out)
            assert hits == [shard_of(name.key(sample, 0), 2) == 0 for sample in samples]
            assert_right(hits, out, samples)
        stop.set()
        thread.join()


def test_a_cache_server_that_is_killed_and_comes_back_elsewhere_is_found_again(tmp_path: Path) -> None:
    with cache_stack(tmp_path) as stack:
        cache = stack.connect(SHAPE)
        stack.ready(cache, identity("server"))
        cache.fill([1, 2], [0, 0], rows_of([1, 2]))
        assert cache.flush()
        before = stack.address
        stack.server.kill()
        stack.server.wait(10)
        out = torch.empty(2, *SHAPE)
        assert cache.read([1, 2], [0, 0], out) == [True, True], "the data path needs no cache server"
        stack.server = start_cache_server(tmp_path, stack.shards)
        assert stack.address != before
        stack.ready(cache, identity("after"))
        cache.fill([3], [0], rows_of([3]))
        assert cache.flush()
        assert cache.read([3], [0], out[:1]) == [True]


def test_a_step_never_waits_for_fills(tmp_path: Path) -> None:
    with cache_stack(tmp_path) as stack:
        cache = stack.connect((256, 1024))
        stack.ready(cache, identity("queue"), values=30)
        stack.redis().execute_command("CLIENT", "PAUSE", "700")
        rows = rows_of(list(range(8)), (256, 1024))
        started = time.monotonic()
        for _ in range(30):
            cache.fill(list(range(8)), [0] * 8, rows)
        elapsed = time.monotonic() - started
        assert cache.flush()
        counts = cache.take_counts()
        assert counts.dropped_fills > 0, "30 x 8 MiB do not fit into the queue"
        assert counts.fills + counts.dropped_fills + counts.refused_fills == 240
        assert elapsed < 0.7


@contextmanager
def proxied(stack: CacheStack, seed: int = 0) -> Iterator[RedisProxy]:
    """From now on everybody reaches the shard through a proxy."""
    stack.server.terminate()
    assert stack.server.wait(10) == 0
    with RedisProxy(stack.shards[0], seed) as proxy:
        stack.server = start_cache_server(stack.run_dir, [proxy.shard])
        yield proxy


def read_and_time(cache: BoundaryCache, samples: list[int]) -> tuple[list[bool], float]:
    """Read, assert that what hits is right, and that it took no longer than the client's timeouts. Returns hits and seconds."""
    out = torch.full((len(samples), *SHAPE), -1.0)
    started = time.monotonic()
    hits = cache.read(samples, [0] * len(samples), out)
    seconds = time.monotonic() - started
    assert seconds < READ_BOUND_SECONDS + WAIT_SECONDS_MAX
    assert_right(hits, out, samples)
    return hits, seconds


def test_a_stopped_redis_costs_one_silence_and_serves_again_when_it_goes_on(tmp_path: Path) -> None:
    """SIGSTOP: connections are still accepted by the kernel, and nothing answers on them."""
    with cache_stack(tmp_path) as stack:
        cache = stack.connect(SHAPE)
        stack.ready(cache, identity("stopped"))
        samples = list(range(16))
        cache.fill(samples, [0] * 16, rows_of(samples))
        assert cache.flush()
        stack.shards[0].process.send_signal(signal.SIGSTOP)
        try:
            cache.prefetch(samples, [0] * 16)
            waits = []
            until = time.monotonic() + 3.0
            while time.monotonic() < until:
                started = time.monotonic()
                cache.fill([99], [0], rows_of([99]))
                assert time.monotonic() - started < AT_ONCE_SECONDS
                hits, seconds = read_and_time(cache, samples)
                waits.append(seconds)
                assert not any(hits)
            assert sum(waits) < READ_BOUND_SECONDS + WAIT_SECONDS_MAX, "one silence each for the prefetch and the read, then none"
        finally:
            stack.shards[0].process.send_signal(signal.SIGCONT)
        wait_until(lambda: all(read_and_time(cache, samples)[0]), 20.0)


def test_a_slow_redis_is_waited_for_no_longer_than_said(tmp_path: Path) -> None:
    """It dribbles: every pause is shorter than a silence, so that only the deadline of the whole read ends it."""
    with cache_stack(tmp_path) as stack, proxied(stack) as proxy:
        cache = stack.connect(SHAPE)
        stack.ready(cache, identity("slow"))
        samples = list(range(32))
        cache.fill(samples, [0] * 32, rows_of(samples))
        assert cache.flush()
        assert read_and_time(cache, samples)[0] == [True] * 32
        proxy.delay_seconds, proxy.chunk_bytes = SILENCE_SECONDS / 5, 2048
        hits, seconds = read_and_time(cache, samples)
        assert not all(hits)
        assert seconds > SILENCE_SECONDS, "it went on as long as something came"
        cache.prefetch(samples, [0] * 32)
        read_and_time(cache, samples)
        proxy.delay_seconds, proxy.chunk_bytes = 0.0, 65536
        wait_until(lambda: all(read_and_time(cache, samples)[0]), 20.0)


def test_bits_that_flip_on_the_way_give_misses_and_never_another_value(tmp_path: Path) -> None:
    """In both directions: lengths, keys and commands are hit as well as values."""
    with cache_stack(tmp_path) as stack, proxied(stack, seed=7) as proxy:
        cache = stack.connect(SHAPE)
        name = identity("flips")
        stack.ready(cache, name)
        samples = list(range(48))
        cache.fill(samples, [0] * 48, rows_of(samples))
        assert cache.flush()
        proxy.chunk_bytes = 1024
        damaged = 0
        until = time.monotonic() + 8.0
        while time.monotonic() < until:
            proxy.flip_share = 0.01
            cache.fill(samples, [0] * 48, rows_of(samples))
            hits, _ = read_and_time(cache, samples)
            damaged += hits.count(False)
            proxy.flip_share = 0.0
            wait_until(lambda: all(shard.up for shard in cache._shards()), 20.0)
        assert proxy.flipped > 10 and damaged > 0
        assert cache.take_counts().corrupt > 0
        assert cache.flush(20.0)
        cache.fill(samples, [0] * 48, rows_of(samples))
        assert cache.flush(20.0)
        wait_until(lambda: all(read_and_time(cache, samples)[0]), 20.0)


def test_a_whole_value_under_another_samples_key_is_a_miss(tmp_path: Path) -> None:
    with cache_stack(tmp_path) as stack:
        cache = stack.connect(SHAPE)
        name = identity("swapped")
        stack.ready(cache, name)
        cache.fill([4, 5], [0, 0], rows_of([4, 5]))
        assert cache.flush()
        client = stack.redis()
        four, five = client.get(name.key(4, 0)), client.get(name.key(5, 0))
        client.set(name.key(4, 0), five)
        client.set(name.key(5, 0), four)
        assert read_and_time(cache, [4, 5])[0] == [False, False]
        assert cache.take_counts().corrupt == 2
        cache.fill([4, 5], [0, 0], rows_of([4, 5]))
        assert cache.flush()
        assert read_and_time(cache, [4, 5])[0] == [True, True]


def test_a_cache_server_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    """SIGSTOP: it accepts and does not answer. What is known of the shards goes on being used."""
    with cache_stack(tmp_path) as stack:
        cache, closing = stack.connect(SHAPE), stack.connect(SHAPE)
        stack.ready(cache, identity("hangs"))
        samples = list(range(8))
        cache.fill(samples, [0] * 8, rows_of(samples))
        assert cache.flush()
        stack.server.send_signal(signal.SIGSTOP)
        try:
            assert read_and_time(cache, samples)[0] == [True] * 8
            started = time.monotonic()
            cache.set_boundary(identity("next", 4), identity("hangs"), 100)
            cache.fill(samples, [0] * 8, rows_of(samples))
            cache.drop_previous([7], [0])
            assert time.monotonic() - started < AT_ONCE_SECONDS
            assert cache.flush()
            assert read_and_time(cache, samples)[0] == [False] * 8, "nothing is admitted yet at the new boundary"
            out = torch.empty(8, *SHAPE)
            assert cache.read_previous(samples, [0] * 8, out) == [True] * 7 + [False]
            assert torch.equal(out[:7], rows_of(samples)[:7])
            started = time.monotonic()
            closing.close()
            stack.opened.remove(closing)
            assert time.monotonic() - started < 3 * CALL_SECONDS + 1.0
        finally:
            stack.server.send_signal(signal.SIGCONT)
        wait_until(lambda: cache.admitted_fraction > 0.0, 20.0)
        cache.fill(samples, [0] * 8, rows_of(samples))
        assert cache.flush()
        assert read_and_time(cache, samples)[0] == [True] * 8
