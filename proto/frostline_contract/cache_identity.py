"""Keys and headers of values in the activation cache (docs/protocols.md 11.1). `cache_tag` decides whose values are trusted.

A key stands for prefix revision (with its codec chain), data-set digest, split, boundary, sample, augmentation variant and chunk,
never for run, rank, world size or generation. So a cache outlives every reshape, and runs with the same prefix share it.
"""

import hashlib
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

from frostline_contract.cache_tag import NONCE_BYTES, TAG_BYTES, Tags

CHUNK_BYTES = 512 * 1024 - 64
"""Bytes of a chunk. Values above WHOLE_VALUE_BYTES are stored in chunks (3.2x faster than one 16 MiB GET)."""

WHOLE_VALUE_BYTES = 1024 * 1024
MAGIC = b"FLAC"
HEADER_VERSION = 5
HEAD = struct.Struct("<4sBBHI8s")
"""Layout of a header without its tag: magic, version, dtype code, ndim, payload bytes of this chunk, shape digest."""
PLACE = struct.Struct(">QII")
"""Layout of a key's second half: sample, augmentation variant, chunk."""
HEADER = struct.Struct(f"<{HEAD.size}s{NONCE_BYTES + TAG_BYTES}s")
"""Layout of a whole header: HEAD and the chunk's tag, 48 bytes. With these and Redis' own 16 bytes a full chunk fills an
allocator's size class of 512 KiB."""

DTYPE_CODES = {"float32": 1, "float64": 2, "bfloat16": 3, "float16": 4, "int8": 5, "uint8": 6}


@dataclass(frozen=True)
class CacheIdentity:
    """The part of a key that all samples of one boundary share.

    Attributes:
        prefix_revision: hex digest over the prefix's weights, buffers, preprocessing, tile shape, codec chain and probe.
        dataset_digest: hex digest over the data.
        split: name of the split.
        boundary: the freeze point at which the prefix ends.
    """

    prefix_revision: str
    dataset_digest: str
    split: str
    boundary: int

    def namespace(self) -> bytes:
        """The first 16 bytes of every key with this identity: a hash of it."""
        return self._namespace

    @cached_property
    def _namespace(self) -> bytes:
        text = f"{self.prefix_revision}|{self.dataset_digest}|{self.split}|{self.boundary}"
        return hashlib.sha256(text.encode()).digest()[:16]

    def key(self, sample: int, variant: int, chunk: int = 0) -> bytes:
        """The key of one chunk of one sample's boundary activation: 16 bytes of namespace and 16 of place, binary."""
        return b"fl:" + self._namespace + PLACE.pack(sample, variant, chunk)


def admitted(sample: int, variant: int, fraction: float) -> bool:
    """Whether a sample belongs to the admitted fraction: by hash, so that every worker and every epoch agrees."""
    if fraction >= 1.0:
        return True
    place = int.from_bytes(hashlib.blake2b(struct.pack(">QI", sample, variant), digest_size=8).digest(), "big")
    return place < fraction * 2**64


def shard_of(key: bytes, num_shards: int) -> int:
    """The Redis shard of a key: client-side hashing over single-threaded servers."""
    return zlib.crc32(key) % num_shards


def chunk_sizes(value_bytes: int) -> list[int]:
    """Payload sizes of a value's chunks: one where it is small, CHUNK_BYTES pieces otherwise."""
    if value_bytes <= WHOLE_VALUE_BYTES:
        return [value_bytes]
    whole, rest = divmod(value_bytes, CHUNK_BYTES)
    return [CHUNK_BYTES] * whole + ([rest] if rest else [])


@lru_cache(maxsize=64)
def shape_digest(shape: tuple[int, ...]) -> bytes:
    """8 bytes that stand for a value's shape in its header, so that a value of another shape is no hit."""
    return hashlib.blake2b(repr(tuple(shape)).encode(), digest_size=8).digest()


def pack_header(dtype: str, shape: tuple[int, ...], payload: memoryview | bytes, key: bytes, tags: Tags) -> bytes:
    """The self-describing header in front of a stored chunk.

    Args:
        dtype: name of the value's type (`DTYPE_CODES`).
        shape: of the value.
        payload: the chunk.
        key: the key under which the chunk is stored.
        tags: makes the tag at the header's end.
    """
    head = HEAD.pack(MAGIC, HEADER_VERSION, DTYPE_CODES[dtype], len(shape), len(payload), shape_digest(shape))
    return head + tags.make(key, head, payload)


def header_fault(
    header: bytes, dtype: str, shape: tuple[int, ...], payload: memoryview | bytes, key: bytes, tags: Tags
) -> str | None:
    """Why a stored value cannot be used; None where it can. A torn or foreign value is a miss and not an error.

    Args:
        header: the bytes in front of the value.
        dtype, shape, payload: as in `pack_header`, as the reader expects them.
        key: the key under which the value was found.
        tags: checks the tag at the header's end.
    """
    if len(header) != HEADER.size:
        return f"header of {len(header)} bytes, expected {HEADER.size}"
    head, tag = HEADER.unpack(header)
    magic, version, code, ndim, length, digest = HEAD.unpack(head)
    if magic != MAGIC or version != HEADER_VERSION:
        return f"magic {magic!r} version {version}"
    if code != DTYPE_CODES.get(dtype) or ndim != len(shape) or digest != shape_digest(shape):
        return f"dtype code {code} or shape differs from {dtype} {shape}"
    if length != len(payload):
        return f"payload of {len(payload)} bytes, header says {length}"
    return None if tags.holds(tag, key, head, payload) else tags.fault
