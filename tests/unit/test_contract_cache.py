"""What a cached value is: keys that tell everything apart, headers that see every kind of damage."""

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frostline_contract.cache_identity import (
    CHUNK_BYTES,
    HEADER,
    WHOLE_VALUE_BYTES,
    CacheIdentity,
    admitted,
    chunk_sizes,
    header_fault,
    pack_header,
    shard_of,
)
from frostline_contract.cache_tag import SECRET_VARIABLE, Checksums, Signatures, Tags, read_secret, tags_of, unsigned_refusal
from frostline_contract.job.cluster import CacheSection
from frostline_contract.run_directory import RunDirectory

IDENTITY = CacheIdentity("ab" * 32, "cd" * 32, "train", 3)
PAYLOAD = bytes(range(256)) * 8
SHAPE = (16, 32)
KEY = IDENTITY.key(5, 0)
SIGNED = Signatures("a secret of sixteen")
EVERY_TAGS = (Checksums(), SIGNED)


@pytest.mark.parametrize(
    "other",
    [
        CacheIdentity("ac" * 32, "cd" * 32, "train", 3),
        CacheIdentity("ab" * 32, "ce" * 32, "train", 3),
        CacheIdentity("ab" * 32, "cd" * 32, "guard", 3),
        CacheIdentity("ab" * 32, "cd" * 32, "train", 4),
    ],
    ids=["prefix revision", "data set", "split", "boundary"],
)
def test_each_part_of_the_identity_changes_the_key(other: CacheIdentity) -> None:
    assert other.key(7, 0) != IDENTITY.key(7, 0)


def test_parts_do_not_run_into_each_other() -> None:
    assert CacheIdentity("a", "bc", "train", 1).namespace() != CacheIdentity("ab", "c", "train", 1).namespace()


places = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))


@given(places, places)
def test_keys_are_equal_only_for_equal_places(one: tuple[int, int, int], two: tuple[int, int, int]) -> None:
    assert (IDENTITY.key(*one) == IDENTITY.key(*two)) == (one == two)
    assert len(IDENTITY.key(*one)) == 3 + 32


def test_a_key_is_the_same_for_ever() -> None:
    assert IDENTITY.key(7, 1, 2).hex() == "666c3a488e5f4fa5be5ec304943cd8de63fa7f00000000000000070000000100000002"


@given(st.integers(0, 64 * 1024 * 1024))
def test_chunks_cover_the_value(value_bytes: int) -> None:
    sizes = chunk_sizes(value_bytes)
    assert sum(sizes) == value_bytes
    assert len(sizes) == 1 or max(sizes) == CHUNK_BYTES
    assert (len(sizes) == 1) == (value_bytes <= WHOLE_VALUE_BYTES)


@pytest.mark.parametrize("tags", EVERY_TAGS, ids=["checksum", "signature"])
def test_a_whole_header_has_no_fault(tags: Tags) -> None:
    header = pack_header("float32", SHAPE, PAYLOAD, KEY, tags)
    assert len(header) == HEADER.size
    assert header_fault(header, "float32", SHAPE, PAYLOAD, KEY, tags) is None
    assert header_fault(header, "float32", SHAPE, memoryview(PAYLOAD), KEY, tags) is None


def test_a_whole_chunk_fits_an_allocators_size_class() -> None:
    assert CHUNK_BYTES + HEADER.size + 16 <= 512 * 1024


@pytest.mark.parametrize(
    ("dtype", "shape", "payload", "words"),
    [
        ("bfloat16", SHAPE, PAYLOAD, "dtype code 1 or shape"),
        ("float32", (32, 16), PAYLOAD, "shape differs"),
        ("float32", (512,), PAYLOAD, "shape differs"),
        ("float32", SHAPE, PAYLOAD[:-1], "payload of 2047 bytes, header says 2048"),
        ("float32", SHAPE, PAYLOAD[:-1] + b"x", "signature differs"),
        ("complex128", SHAPE, PAYLOAD, "dtype code 1"),
    ],
)
def test_foreign_or_torn_values_are_named(dtype: str, shape: tuple[int, ...], payload: bytes, words: str) -> None:
    fault = header_fault(pack_header("float32", SHAPE, PAYLOAD, KEY, SIGNED), dtype, shape, payload, KEY, SIGNED)
    assert fault is not None
    assert words in fault


@given(st.binary(max_size=64), st.sampled_from(EVERY_TAGS))
def test_junk_is_never_taken_for_a_header(junk: bytes, tags: Tags) -> None:
    assert header_fault(junk, "float32", SHAPE, PAYLOAD, KEY, tags) is not None


@given(st.integers(0, HEADER.size + len(PAYLOAD) - 1), st.integers(1, 255), st.sampled_from(EVERY_TAGS))
def test_any_changed_byte_of_header_or_payload_is_seen(place: int, change: int, tags: Tags) -> None:
    torn = bytearray(pack_header("float32", SHAPE, PAYLOAD, KEY, tags) + PAYLOAD)
    torn[place] ^= change
    assert header_fault(bytes(torn[: HEADER.size]), "float32", SHAPE, bytes(torn[HEADER.size :]), KEY, tags) is not None


@given(st.integers(0, 8 * len(KEY) - 1), st.sampled_from(EVERY_TAGS))
def test_a_whole_value_that_was_stored_under_another_key_is_a_miss(bit: int, tags: Tags) -> None:
    other = bytearray(KEY)
    other[bit // 8] ^= 1 << bit % 8
    header = pack_header("float32", SHAPE, PAYLOAD, KEY, tags)
    assert header_fault(header, "float32", SHAPE, PAYLOAD, bytes(other), tags) == tags.fault


@pytest.mark.parametrize("forger", [Checksums(), Signatures("another secret of sixteen"), Signatures("")])
def test_a_value_of_somebody_without_the_secret_is_a_miss(forger: Tags) -> None:
    header = pack_header("float32", SHAPE, PAYLOAD, KEY, forger)
    assert header_fault(header, "float32", SHAPE, PAYLOAD, KEY, SIGNED) == SIGNED.fault
    assert (
        header_fault(pack_header("float32", SHAPE, PAYLOAD, KEY, SIGNED), "float32", SHAPE, PAYLOAD, KEY, forger) == forger.fault
    )


def test_two_runs_with_one_secret_share_and_no_nonce_is_used_twice() -> None:
    headers = {pack_header("float32", SHAPE, PAYLOAD, KEY, tags_of("a secret of sixteen")) for _ in range(1000)}
    assert len({header[-28:-16] for header in headers}) == 1000
    assert all(header_fault(header, "float32", SHAPE, PAYLOAD, KEY, SIGNED) is None for header in headers)


def test_another_version_is_a_miss() -> None:
    header = bytearray(pack_header("float32", SHAPE, PAYLOAD, KEY, SIGNED))
    header[4] = 3
    assert header_fault(bytes(header), "float32", SHAPE, PAYLOAD, KEY, SIGNED) == "magic b'FLAC' version 3"


def test_the_environments_secret_goes_before_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    assert read_secret(tmp_path) is None
    RunDirectory(tmp_path).cache_secret.write_text("the file's secret, long enough\n")
    assert read_secret(tmp_path) == "the file's secret, long enough"
    monkeypatch.setenv(SECRET_VARIABLE, "the environment's secret")
    assert read_secret(tmp_path) == read_secret(None) == "the environment's secret"
    monkeypatch.setenv(SECRET_VARIABLE, "short")
    with pytest.raises(ValueError, match=f"{SECRET_VARIABLE} holds 5 characters.*at least 16.*openssl"):
        read_secret(tmp_path)


def test_servers_of_others_need_a_secret_or_the_users_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    assert unsigned_refusal(CacheSection(), tmp_path) is None
    others = CacheSection(addresses=("redis:6379",))
    refusal = unsigned_refusal(others, tmp_path)
    assert refusal is not None
    assert "cache.addresses is ['redis:6379']" in refusal
    assert SECRET_VARIABLE in refusal and "cache.trusted: true" in refusal
    assert unsigned_refusal(CacheSection(addresses=("redis:6379",), trusted=True), tmp_path) is None
    RunDirectory(tmp_path).cache_secret.write_text("a secret of sixteen characters")
    assert unsigned_refusal(others, tmp_path) is None


def test_admission_is_by_hash_close_to_its_share_and_only_grows() -> None:
    few = {sample for sample in range(4000) if admitted(sample, 0, 0.25)}
    more = {sample for sample in range(4000) if admitted(sample, 0, 0.5)}
    assert few < more
    assert abs(len(few) / 4000 - 0.25) < 0.03
    assert all(admitted(sample, 3, 1.0) for sample in range(100))
    assert not any(admitted(sample, 3, 0.0) for sample in range(100))


def test_shards_share_the_keys() -> None:
    counts = [0, 0, 0]
    for sample in range(3000):
        counts[shard_of(IDENTITY.key(sample, 0), 3)] += 1
    assert min(counts) > 800, counts


def test_sample_order_is_big_endian() -> None:
    assert IDENTITY.key(1, 0)[19:27] == struct.pack(">Q", 1)
