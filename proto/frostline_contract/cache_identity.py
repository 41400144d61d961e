"""What a cached value IS: its key and its header (docs/protocols.md 11.1); `cache_tag` says who may write it.

A key names prefix revision (with its codec chain), data-set digest, split, boundary, sample, augmentation variant and chunk;
never run, rank, world size or generation, so a cache outlives every reshape and is shared by runs with the same prefix.
"""

import hashlib
import struct
import zlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

from frostline_contract.cache_tag import NONCE_BYTES, TAG_BYTES, Tags

CHUNK_BYTES = 512 * 1024 - 64
"""Values above WHOLE_VALUE_BYTES are stored in chunks of this size (3.2x faster than one 16 MiB GET)."""

WHOLE_VALUE_BYTES = 1024 * 1024
MAGIC = b"FLAC"
HEADER_VERSION = 5
HEAD = struct.Struct("<4sBBHI8s")
"""magic, version, dtype code, ndim, payload bytes of this chunk, shape digest."""
PLACE = struct.Struct(">QII")
"""sample, augmentation variant, chunk."""
HEADER = struct.Struct(f"<{HEAD.size}s{NONCE_BYTES + TAG_BYTES}s")
"""HEAD and the chunk's tag: 48 bytes, so that a whole chunk and Redis' own 16 fill an allocator's class of 512 KiB."""

DTYPE_CODES = {"float32": 1, "float64": 2, "bfloat16": 3, "float16": 4, "int8": 5, "uint8": 6}


@dataclass(frozen=True)
class CacheIdentity:
    """The part of a key that all samples of one boundary share.

    prefix_revision: hex digest over the prefix's weights, buffers, preprocessing, tile shape, codec chain and probe.
    """

    prefix_revision: str
    dataset_digest: str
    split: str
    boundary: int

    def namespace(self) -> bytes:
        """16 bytes that stand for the identity in every key."""
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
    """The self-describing header in front of the chunk that is stored under `key`."""
    head = HEAD.pack(MAGIC, HEADER_VERSION, DTYPE_CODES[dtype], len(shape), len(payload), shape_digest(shape))
    return head + tags.make(key, head, payload)


def header_fault(
    header: bytes, dtype: str, shape: tuple[int, ...], payload: memoryview | bytes, key: bytes, tags: Tags
) -> str | None:
    """Why what was found under `key` cannot be used, or None where it is whole: a torn or foreign value is a miss, no error."""
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
