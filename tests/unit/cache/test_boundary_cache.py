"""The worker's cache against real Redis shards and a real cache server: what is there, what is not, what is damaged."""

import random
import threading
import time

import pytest
import torch
from cache_stack import PATIENT_SECONDS, CacheStack, admitted_fraction, identity, wait_until

from frostline_contract.cache_identity import HEADER, admitted, pack_header, shard_of
from frostline_contract.cache_tag import Checksums
from frostline_trainer.cache.boundary_cache import BoundaryCache
from tests.in_time import fastest_of_three, in_time


def rows_of(samples: list[int], shape: tuple[int, int] = (8, 16), dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Sample i's boundary activation, a function of i alone."""
    return torch.stack([torch.randn(shape, generator=torch.Generator().manual_seed(i)) for i in samples]).to(dtype)


def store(cache: BoundaryCache, samples: list[int], rows: torch.Tensor, variant: int = 0) -> None:
    cache.fill(samples, [variant] * len(samples), rows)
    assert cache.flush(PATIENT_SECONDS), "fills did not leave"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_what_was_filled_is_read_bit_for_bit_by_another_worker(stack: CacheStack, dtype: torch.dtype) -> None:
    writer, reader = stack.connect(dtype=dtype), stack.connect(dtype=dtype)
    name = identity(f"bits-{dtype}")
    stack.ready(writer, name)
    stack.ready(reader, name)
    samples = list(range(10))
    rows = rows_of(samples, dtype=dtype)
    store(writer, samples, rows)
    out = torch.full((12, 8, 16), 7.0, dtype=dtype)
    hits = reader.read([*samples, 10, 11], [0] * 12, out)
    assert hits == [True] * 10 + [False] * 2
    assert torch.equal(out[:10], rows)
    counts = reader.take_counts()
    assert (counts.hits, counts.misses, counts.corrupt) == (10, 2, 0)
    assert counts.bytes_read == 10 * (rows[0].numel() * dtype.itemsize + HEADER.size)
    assert writer.take_counts().fills == 10
    assert reader.take_counts().hits == 0


def test_variant_identity_and_boundary_are_parts_of_the_key(stack: CacheStack) -> None:
    cache = stack.connect()
    stack.ready(cache, identity("parts", 2))
    store(cache, [1], rows_of([1]), variant=3)
    out = torch.empty(1, 8, 16)
    assert cache.read([1], [3], out) == [True]
    assert cache.read([1], [0], out) == [False]
    for other in (identity("parts", 3), identity("another revision", 2)):
        cache.set_boundary(other, None, 100)
        assert cache.read([1], [3], out) == [False]


def test_values_above_a_mebibyte_travel_in_chunks_over_both_shards(stack: CacheStack) -> None:
    cache = stack.connect(shape=(512, 768))
    name = identity("chunks")
    stack.ready(cache, name, values=20)
    samples = [5, 6]
    rows = rows_of(samples, (512, 768))
    store(cache, samples, rows)
    keys = [name.key(5, 0, chunk) for chunk in range(5)]
    assert [stack.redis(shard_of(key, 2)).exists(key) for key in keys] == [1, 1, 1, 1, 0]
    out = torch.empty(3, 512, 768)
    assert cache.read([5, 9, 6], [0] * 3, out) == [True, False, True]
    assert torch.equal(out[[0, 2]], rows)
    stack.redis(shard_of(keys[2], 2)).delete(keys[2])
    assert cache.read([5, 6], [0] * 2, out[:2]) == [False, True]


def test_values_of_somebody_without_the_secret_are_misses(stack: CacheStack) -> None:
    """Who can write to the Redis, but does not know the secret: own numbers with a header made right, and values moved."""
    cache = stack.connect()
    name = identity("poison")
    stack.ready(cache, name)
    rows = rows_of([1, 2, 3])
    store(cache, [1, 2, 3], rows)
    keys = {sample: name.key(sample, 0) for sample in (1, 2, 3)}
    shards = {sample: stack.redis(shard_of(key, 2)) for sample, key in keys.items()}
    scaled = (rows[0] * 1.01).numpy().tobytes()
    shards[1].set(keys[1], pack_header("float32", (8, 16), scaled, keys[1], Checksums()) + scaled)
    shards[2].set(keys[2], shards[3].get(keys[3]))
    out = torch.empty(3, 8, 16)
    assert cache.read([1, 2, 3], [0] * 3, out) == [False, False, True]
    assert torch.equal(out[2], rows[2])
    assert cache.take_counts().corrupt == 2


def test_damaged_values_are_misses_and_are_healed_by_a_fill(stack: CacheStack) -> None:
    cache = stack.connect()
    name = identity("damage")
    stack.ready(cache, name)
    samples = list(range(6))
    rows = rows_of(samples)
    store(cache, samples, rows)
    keys = [name.key(sample, 0) for sample in samples]
    clients = [stack.redis(shard_of(key, 2)) for key in keys]
    clients[0].setrange(keys[0], HEADER.size + 100, b"\xff\x00\xff")
    clients[1].setrange(keys[1], 0, b"JUNK")
    clients[2].append(keys[2], b"more")
    clients[3].delete(keys[3])
    clients[3].lpush(keys[3], "a list")
    clients[4].set(keys[4], clients[4].get(name.key(4, 0))[:-1])
    cache.take_counts()
    out = torch.empty(6, 8, 16)
    assert cache.read(samples, [0] * 6, out) == [False] * 5 + [True]
    assert torch.equal(out[5], rows[5])
    assert cache.take_counts().corrupt == 5
    store(cache, samples[:5], rows[:5])
    assert cache.read(samples, [0] * 6, out) == [True] * 6
    assert torch.equal(out, rows)


def test_a_value_of_another_shape_or_type_under_the_same_key_is_refused(stack: CacheStack) -> None:
    name = identity("shape")
    wide, narrow, integers = stack.connect((8, 16)), stack.connect((16, 8)), stack.connect((8, 16), codec="bfloat16")
    for cache in (wide, narrow, integers):
        stack.ready(cache, name)
    store(wide, [1], rows_of([1]))
    assert wide.read([1], [0], torch.empty(1, 8, 16)) == [True]
    assert narrow.read([1], [0], torch.empty(1, 16, 8)) == [False]
    assert integers.read([1], [0], torch.empty(1, 8, 16)) == [False]
    assert (narrow.take_counts().corrupt, integers.take_counts().corrupt) == (1, 1)


@pytest.mark.parametrize("codec", ["none", "bfloat16", "int8"])
def test_a_hit_has_the_bits_of_the_round_trip(stack: CacheStack, codec: str) -> None:
    cache = stack.connect(codec=codec)
    stack.ready(cache, identity(f"codec-{codec}"))
    samples = list(range(7))
    rows = rows_of(samples)
    store(cache, samples, rows)
    out = torch.full((8, 8, 16), 3.0)
    assert cache.read([*samples, 99], [0] * 8, out) == [True] * 7 + [False]
    assert torch.equal(out[:7], cache.codec.round_trip(rows))
    strided = torch.zeros(7, 16, 8).transpose(1, 2)
    assert cache.read(samples, [0] * 7, strided) == [True] * 7
    assert torch.equal(strided, cache.codec.round_trip(rows))


def test_advance_reads_the_old_boundary_writes_the_new_and_drops_the_old(stack: CacheStack) -> None:
    cache = stack.connect()
    old, new = identity("advance", 2), identity("advanced", 4)
    stack.ready(cache, old)
    samples = list(range(5))
    rows = rows_of(samples)
    store(cache, samples, rows)
    stack.ready(cache, new, previous=old)
    out = torch.empty(5, 8, 16)
    assert cache.read(samples, [0] * 5, out) == [False] * 5
    assert cache.read_previous(samples, [0] * 5, out) == [True] * 5
    advanced = out * 2.0
    cache.fill(samples, [0] * 5, advanced)
    cache.drop_previous(samples, [0] * 5)
    assert cache.flush(PATIENT_SECONDS)
    assert cache.read_previous(samples, [0] * 5, torch.empty_like(out)) == [False] * 5
    assert cache.read(samples, [0] * 5, out) == [True] * 5
    assert torch.equal(out, rows * 2.0)
    counts = cache.take_counts()
    assert (counts.previous_hits, counts.hits, counts.misses) == (5, 5, 5)
    assert not any(stack.redis(shard).exists(old.key(sample, 0)) for shard in (0, 1) for sample in samples)


def test_runs_that_deal_samples_out_otherwise_meet_by_their_names(stack: CacheStack) -> None:
    one, other = stack.connect(names=[7, 3, 5]), stack.connect(names=[5, 9, 7])
    prefix = identity("of two seeds", 2)
    stack.ready(one, prefix)
    stack.ready(other, prefix)
    rows = rows_of([0, 1, 2])
    store(one, [0, 1, 2], rows)
    out = torch.empty(3, 8, 16)
    assert other.read([0, 1, 2], [0] * 3, out) == [True, False, True]
    assert torch.equal(out[0], rows[2]) and torch.equal(out[2], rows[0])


def test_a_shared_cache_keeps_the_boundary_before(stack: CacheStack) -> None:
    cache = stack.connect(keep_previous=True)
    old, new = identity("from step 1", 2), identity("of one run", 4)
    stack.ready(cache, old)
    store(cache, [0, 1], rows_of([0, 1]))
    stack.ready(cache, new, previous=old)
    cache.drop_previous([0, 1], [0, 0])
    assert cache.flush(PATIENT_SECONDS)
    another = stack.connect(keep_previous=True)
    stack.ready(another, old)
    assert another.read([0, 1], [0, 0], torch.empty(2, 8, 16)) == [True, True]


@fastest_of_three
def test_prefetched_samples_are_taken_once_and_belong_to_their_boundary(stack: CacheStack) -> None:
    cache = stack.connect()
    name = identity("prefetch")
    stack.ready(cache, name)
    samples = list(range(8))
    rows = rows_of(samples)
    store(cache, samples, rows)
    cache.prefetch([*samples, 50], [0] * 9)
    before = time.monotonic()
    wait_until(lambda: cache.profile().fetch_seconds_per_sample is not None)
    for key in (name.key(sample, 0) for sample in samples):
        stack.redis(shard_of(key, 2)).delete(key)
    out = torch.empty(9, 8, 16)
    assert cache.read([*samples, 50], [0] * 9, out) == [True] * 8 + [False]
    assert torch.equal(out[:8], rows)
    assert cache.read(samples, [0] * 8, out[:8]) == [False] * 8, "taken values come from Redis again, where they are gone"
    store(cache, samples, rows)
    cache.prefetch(samples, [0] * 8)
    cache.set_boundary(identity("prefetch elsewhere"), None, 100)
    assert cache.read(samples, [0] * 8, out[:8]) == [False] * 8
    in_time(time.monotonic() - before, 5.0, "taking what was prefetched")


def test_a_prefetched_batch_is_taken_as_it_was_received(stack: CacheStack) -> None:
    cache = stack.connect()
    stack.ready(cache, identity("whole"))
    samples, host = [3, 1, 4, 15, 9, 2], torch.device("cpu")
    rows = rows_of(samples)
    store(cache, samples, rows)
    cache.prefetch(samples, [0] * 6)
    assert cache.take([*samples[1:], samples[0]], [0] * 6, host) is None, "another order"
    taken = cache.take(samples[:4], [0] * 4, host)
    assert taken is not None and torch.equal(taken, rows[:4])
    rest = cache.take(samples[4:], [0] * 2, host)
    assert rest is not None and torch.equal(rest, rows[4:])
    assert rest.untyped_storage().data_ptr() == taken.untyped_storage().data_ptr(), "both lie where they were received"
    assert cache.take(samples[:4], [0] * 4, host) is None, "each sample once"
    assert (cache.take_counts().hits, cache.profile().exposed_seconds_per_sample is not None) == (6, True)
    cache.prefetch([*samples, 50], [0] * 7)
    assert cache.take([*samples, 50], [0] * 7, host) is None
    out = torch.empty(7, 8, 16)
    assert cache.read([*samples, 50], [0] * 7, out) == [True] * 6 + [False], "what was there is not lost with what was not"
    assert torch.equal(out[:6], rows)
    assert cache.take([], [], host) is None


def test_only_the_admitted_share_is_filled(stack: CacheStack) -> None:
    cache = stack.connect(shape=(64, 256))
    name = identity("share")
    num_values = 4000
    cache.set_boundary(name, None, num_values)
    wait_until(lambda: admitted_fraction(cache) > 0.0)
    fraction = admitted_fraction(cache)
    assert fraction < 1.0, f"4000 x 64 KiB were all admitted ({fraction}) into 128 MiB"
    samples = list(range(40))
    store(cache, samples, rows_of(samples, (64, 256)))
    out = torch.empty(40, 64, 256)
    assert cache.read(samples, [0] * 40, out) == [admitted(sample, 0, fraction) for sample in samples]


def test_a_failed_audit_ends_the_use_of_the_boundary(stack: CacheStack) -> None:
    cache = stack.connect(shadow_audit_fraction=0.25)
    stack.ready(cache, identity("audit"))
    store(cache, [1], rows_of([1]))
    out = torch.empty(1, 8, 16)
    due = [cache.audit_due(sample, step) for sample in range(100) for step in range(20)]
    assert 0.2 < sum(due) / 2000 < 0.3
    cache.report_audit(True, sample=1)
    assert cache.read([1], [0], out) == [True]
    cache.report_audit(False, sample=1)
    assert cache.read([1], [0], out) == [False]
    counts = cache.take_counts()
    assert (counts.audited, counts.audit_failures) == (2, 1)


@fastest_of_three
def test_without_any_server_everything_is_a_miss_and_nothing_blocks(tmp_path) -> None:  # type: ignore[no-untyped-def]
    from frostline_contract.job.cluster import CacheSection

    started = time.monotonic()
    cache = BoundaryCache("127.0.0.1:1", "token", "w", CacheSection(), (8, 16), torch.float32, tmp_path)
    cache.set_boundary(identity("nowhere"), None, 10)
    out = torch.empty(2, 8, 16)
    for _ in range(50):
        assert cache.read([1, 2], [0, 0], out) == [False, False]
        cache.fill([1, 2], [0, 0], rows_of([1, 2]))
        cache.prefetch([1, 2], [0, 0])
    assert cache.profile().fetch_seconds_per_sample is None, "no shard is known"
    cache.close()
    took = time.monotonic() - started
    assert cache.take_counts().misses == 100
    in_time(took, 4.0, "what waits for nobody")


def test_readers_prefetch_and_fills_side_by_side_never_mix_samples_up(stack: CacheStack) -> None:
    cache = stack.connect()
    stack.ready(cache, identity("threads"), values=200)
    samples = list(range(200))
    rows = rows_of(samples)
    wrong: list[str] = []

    def work(seed: int) -> None:
        chooser = random.Random(seed)
        for _ in range(40):
            chosen = chooser.sample(samples, 16)
            cache.prefetch(chooser.sample(samples, 16), [0] * 16)
            out = torch.empty(16, 8, 16)
            hits = cache.read(chosen, [0] * 16, out)
            wrong.extend(f"sample {s}" for i, s in enumerate(chosen) if hits[i] and not torch.equal(out[i], rows[s]))
            missing = [s for i, s in enumerate(chosen) if not hits[i]]
            cache.fill(missing, [0] * len(missing), rows[missing])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert wrong == []
    counts = cache.take_counts()
    assert counts.hits + counts.misses == 3 * 40 * 16
    assert counts.hits > 500
    assert counts.corrupt == 0
