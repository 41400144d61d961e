"""Admission and the life of identities, by hand-worked cases; and Redis' own figures for the memory that is promised."""

import os
from collections.abc import Callable

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from frostline_cache_server.admission import admit, allocated_bytes, stored_bytes, usable_bytes
from frostline_cache_server.boundaries import FIRST_LEASE_SECONDS, FORGET_SECONDS, Boundaries
from frostline_cache_server.shards import parse_addresses
from frostline_contract.cache_identity import CHUNK_BYTES, HEADER, CacheIdentity
from frostline_controller.cluster.local.redis_process import RedisProcess

VALUE = 100_000
MIB = 1 << 20


def identity(name: str, boundary: int = 2) -> CacheIdentity:
    return CacheIdentity(prefix_revision=name, dataset_digest="d", split="train", boundary=boundary)


def test_what_fits_is_admitted_with_the_reason() -> None:
    each = stored_bytes(VALUE)
    assert each == 114_688 + 160
    whole = admit(usable=each * 10, promised_elsewhere=0, samples=10, value_bytes=VALUE)
    assert (whole.fraction, whole.promised_bytes) == (1.0, each * 10)
    half = admit(usable=each * 10, promised_elsewhere=each * 5, samples=10, value_bytes=VALUE)
    assert half.fraction == 0.5
    assert "are promised to other boundaries" in half.reason
    assert admit(each * 10, each * 20, 10, VALUE).fraction == 0.0
    kept = admit(each * 10, each * 9, 10, VALUE, at_least=0.4)
    assert kept.fraction == 0.4
    assert "0.400 was promised before" in kept.reason
    assert admit(0, 0, 5, VALUE).reason.startswith("no memory limit is known")
    assert admit(each, 0, 0, VALUE).reason.startswith("nothing to store")


@given(
    usable=st.integers(0, 1 << 40),
    elsewhere=st.integers(0, 1 << 40),
    samples=st.integers(0, 1 << 24),
    value_bytes=st.integers(1, 1 << 26),
    before=st.floats(0, 1),
)
def test_admission_never_leaves_its_bounds(usable: int, elsewhere: int, samples: int, value_bytes: int, before: float) -> None:
    answer = admit(usable, elsewhere, samples, value_bytes)
    assert 0.0 <= answer.fraction <= 1.0
    assert answer.promised_bytes <= max(0, usable - elsewhere)
    if samples:
        assert admit(usable, elsewhere, samples, value_bytes, before).fraction >= before


@given(st.integers(1, 1 << 30))
def test_allocation_covers_the_request_and_wastes_at_most_a_quarter(size: int) -> None:
    assert size <= allocated_bytes(size) <= max(size * 1.25, size + 16)


def test_promised_memory_is_what_redis_takes(start_shard: Callable[..., RedisProcess]) -> None:
    server = start_shard()
    client = redis.Redis(port=server.port, password=server.password)
    for payload in (2_000, 40_000, 300_000, CHUNK_BYTES):
        client.flushall()
        before = client.info("memory")["used_memory"]
        for sample in range(40):
            client.set(identity("memory").key(sample, 0), os.urandom(payload + HEADER.size))
        taken = (client.info("memory")["used_memory"] - before) / 40
        assert taken <= stored_bytes(payload + HEADER.size) * 1.02, payload
        assert taken >= stored_bytes(payload + HEADER.size) * 0.75, payload


def test_usable_memory_leaves_room_for_redis_itself() -> None:
    assert usable_bytes(64 * MIB, 1) == int(63 * MIB * 0.92)
    assert usable_bytes(64 * MIB, 2) == int(62 * MIB * 0.92)
    assert usable_bytes(MIB // 2, 1) == 0


def test_a_second_boundary_gets_what_the_first_left_and_grows_when_it_goes() -> None:
    books, usable = Boundaries(), stored_bytes(VALUE) * 100
    first, second = identity("first"), identity("second")
    assert books.admit(first, 80, VALUE, usable, now=0.0).fraction == 1.0
    books.lease(first, "w", 30.0, now=0.0)
    assert books.admit(second, 80, VALUE, usable, now=1.0).fraction == 0.25
    assert books.admit(second, 80, VALUE, usable, now=31.0).fraction == 1.0
    assert books.admit(first, 80, VALUE, usable, now=32.0).fraction == 1.0, "a promise never shrinks"


def test_an_advance_hands_the_promise_on_and_the_old_lives_until_its_lease_ends() -> None:
    books, usable = Boundaries(), stored_bytes(VALUE) * 100
    old, new = identity("r1", 2), identity("r2", 4)
    books.admit(old, 100, VALUE, usable, now=0.0)
    books.lease(old, "w", 60.0, now=0.0)
    known, admission = books.advance(old, new, usable, now=10.0)
    assert (known, admission.fraction) == (True, 1.0)
    assert books.advance(old, new, usable, now=11.0)[1].fraction == 1.0
    books.lease(new, "w", 600.0, now=11.0)
    assert books.sweepable(59.0, 0, usable) == {}
    assert books.sweepable(61.0, 0, usable) == {old.namespace(): "boundary 2 was left and its leases ran out"}
    assert books.advance(identity("never heard of"), identity("r3"), usable, now=0.0)[0] is False


def test_without_lease_an_identity_stays_until_memory_is_wanted() -> None:
    books, usable = Boundaries(), stored_bytes(VALUE) * 100
    books.admit(identity("kept"), 10, VALUE, usable, now=0.0)
    late = FIRST_LEASE_SECONDS + 1.0
    assert books.sweepable(late, usable // 2, usable) == {}
    reason = books.sweepable(late, int(usable * 0.8), usable)[identity("kept").namespace()]
    assert "memory is wanted" in reason
    assert books.sweepable(late - 2.0, int(usable * 0.8), usable) == {}
    books.forget_old(late + FORGET_SECONDS)
    assert books.known(identity("kept")) is None


def test_what_one_run_has_left_stays_for_the_next_where_runs_share_the_cache() -> None:
    books, usable = Boundaries(shared=True), stored_bytes(VALUE) * 100
    old, new = identity("from step 1", 2), identity("of one run alone", 4)
    books.admit(old, 80, VALUE, usable, now=0.0)
    books.lease(old, "first", 60.0, now=0.0)
    assert books.advance(old, new, usable, now=10.0)[1].fraction == 0.25, "what is leased is promised only once"
    assert books.admit(new, 80, VALUE, usable, now=61.0).fraction == 1.0
    assert books.sweepable(61.0, 0, usable) == {}, "a second run may begin there"
    assert old.namespace() in books.sweepable(61.0, int(usable * 0.8), usable), "memory is wanted"


def test_a_rollback_returns_to_a_boundary_that_was_left() -> None:
    books, usable = Boundaries(), stored_bytes(VALUE) * 100
    low, high = identity("low", 2), identity("high", 4)
    books.admit(low, 50, VALUE, usable, now=0.0)
    books.advance(low, high, usable, now=1.0)
    books.advance(high, low, usable, now=2.0)
    assert list(books.sweepable(1000.0, 0, usable)) == [high.namespace()]


@pytest.mark.parametrize("text", ["", "localhost", "host:", ":6379", "host:0", "host:70000", "host:abc"])
def test_bad_shard_addresses_are_named(text: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        parse_addresses(text)
    assert parse_addresses("a:1, b:2") == [("a", 1), ("b", 2)]
