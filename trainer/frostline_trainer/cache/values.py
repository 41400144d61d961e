"""Values in Redis: how one sample's value lies there, and how whole samples are read and stored."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from frostline_contract.cache_identity import HEADER, CacheIdentity, chunk_sizes, header_fault, pack_header
from frostline_contract.cache_tag import Tags
from frostline_trainer.cache.codec import Codec
from frostline_trainer.cache.lane import Lane
from frostline_trainer.cache.resp import Buffer, Outcome

READ_SECONDS_MAX = 1.5
"""A read ends here even where the shards go on sending slowly; what has not come by then is a miss."""
WRITE_SECONDS_MAX = 5.0


class ValueLayout:
    """How values of one codec are cut into chunks. A chunk in Redis is HEADER followed by a piece of the payload.

    tags: by which own values are known. names: of the samples, by their place in the split; None: the place itself.
    """

    def __init__(self, codec: Codec, tags: Tags, names: Sequence[int] | np.ndarray | None = None) -> None:
        self._tags, self._names = tags, names
        self._dtype = codec.stored_dtype
        self._shape = codec.value_shape
        self.payload_bytes = codec.payload_bytes
        self._bounds: list[tuple[int, int]] = []
        start = 0
        for size in chunk_sizes(codec.payload_bytes):
            self._bounds.append((start, start + size))
            start += size

    @property
    def num_chunks(self) -> int:
        """Redis keys of one sample's value."""
        return len(self._bounds)

    @property
    def value_bytes(self) -> int:
        """Bytes of one sample in Redis, headers included."""
        return self.payload_bytes + self.num_chunks * HEADER.size

    def name(self, sample: int) -> int:
        """What a sample of the split is called in the cache."""
        return sample if self._names is None else int(self._names[sample])

    def keys(self, identity: CacheIdentity, sample: int, variant: int) -> list[bytes]:
        """The keys of one sample's chunks, in order. sample: its place in the split."""
        return [identity.key(self.name(sample), variant, chunk) for chunk in range(self.num_chunks)]

    def pieces(self, payload: memoryview) -> list[memoryview]:
        """The chunks of one sample's payload, as views."""
        assert len(payload) == self.payload_bytes, f"payload of {len(payload)} bytes, layout of {self.payload_bytes}"
        return [payload[start:end] for start, end in self._bounds]

    def header(self, piece: memoryview, key: bytes) -> bytes:
        """The header of one chunk, HEADER.size bytes: type, shape, length and the tag over key and payload."""
        return pack_header(self._dtype, self._shape, piece, key, self._tags)

    def fault(self, header: Sequence[int] | bytes | memoryview, piece: memoryview, key: bytes) -> str | None:
        """Why the chunk that was found under `key` cannot be used, or None."""
        return header_fault(bytes(header), self._dtype, self._shape, piece, key, self._tags)


@dataclass(frozen=True)
class ReadResult:
    """hits[i]: sample i is whole and checked. corrupt: samples with a torn, foreign or mistyped chunk."""

    hits: list[bool]
    corrupt: int
    bytes_read: int
    seconds: float


def read_values(
    lane: Lane,
    layout: ValueLayout,
    identity: CacheIdentity,
    samples: Sequence[int],
    variants: Sequence[int],
    payloads: memoryview,
    rows: Sequence[int] | None = None,
) -> ReadResult:
    """Fetch sample i's payload into row rows[i] (or i) of `payloads`, rows of payload_bytes. Rows of misses are undefined.

    Blocks at most READ_SECONDS_MAX plus one silence of a shard (0.5 s), plus the checksums of what came.
    """
    started = time.monotonic()
    keys: list[bytes] = []
    targets: list[list[memoryview]] = []
    headers = memoryview(bytearray(len(samples) * layout.num_chunks * HEADER.size))
    for index, (sample, variant) in enumerate(zip(samples, variants, strict=True)):
        keys.extend(layout.keys(identity, sample, variant))
        start = (index if rows is None else rows[index]) * layout.payload_bytes
        payload = payloads[start : start + layout.payload_bytes]
        for piece in layout.pieces(payload):
            place = len(targets) * HEADER.size
            targets.append([headers[place : place + HEADER.size], piece])

    faults: list[str | None] = [None] * len(keys)

    def check(index: int) -> None:
        faults[index] = layout.fault(*targets[index], keys[index])

    outcomes = lane.fetch(keys, targets, started + READ_SECONDS_MAX, check)
    hits, corrupt = [], 0
    for index in range(len(samples)):
        chunks = range(index * layout.num_chunks, (index + 1) * layout.num_chunks)
        unusable = any(outcomes[chunk] is Outcome.UNUSABLE or faults[chunk] is not None for chunk in chunks)
        corrupt += unusable
        hits.append(not unusable and all(outcomes[chunk] is Outcome.DONE for chunk in chunks))
    bytes_read = sum(len(targets[i][1]) + HEADER.size for i, outcome in enumerate(outcomes) if outcome is Outcome.DONE)
    return ReadResult(hits, corrupt, bytes_read, time.monotonic() - started)


def store_values(
    lane: Lane, layout: ValueLayout, identity: CacheIdentity, samples: Sequence[int], variants: Sequence[int], payloads: Tensor
) -> tuple[list[Outcome | None], float]:
    """Store host payloads (n, payload_bytes) uint8. Returns what became of each sample (None: not all of it went) and seconds."""
    started = time.monotonic()
    memory = memoryview(payloads.contiguous().view(-1).numpy())
    items: list[tuple[bytes, Sequence[Buffer]]] = []
    for index, (sample, variant) in enumerate(zip(samples, variants, strict=True)):
        pieces = layout.pieces(memory[index * layout.payload_bytes : (index + 1) * layout.payload_bytes])
        keys = layout.keys(identity, sample, variant)
        items.extend((key, (layout.header(piece, key), piece)) for key, piece in zip(keys, pieces, strict=True))
    chunks = lane.store(items, started + WRITE_SECONDS_MAX)
    outcomes: list[Outcome | None] = []
    for start in range(0, len(chunks), layout.num_chunks):
        of_sample = chunks[start : start + layout.num_chunks]
        whole = all(outcome is Outcome.DONE for outcome in of_sample)
        outcomes.append(Outcome.DONE if whole else Outcome.REFUSED if Outcome.REFUSED in of_sample else None)
    return outcomes, time.monotonic() - started
