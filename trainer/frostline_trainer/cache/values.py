"""Values in Redis: the layout of one sample's value as chunks, and reading and storing whole samples."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

import numpy as np
from torch import Tensor

from frostline_contract.cache_identity import HEADER, CacheIdentity, chunk_sizes, header_fault, pack_header
from frostline_contract.cache_tag import Tags
from frostline_trainer.cache.codec import Codec
from frostline_trainer.cache.lane import Lane
from frostline_trainer.cache.outcomes import Outcome
from frostline_trainer.cache.resp import Buffer

READ_SECONDS_MAX = 1.5
"""Time limit of a read, even if shards are still sending; values that have not arrived by then are misses."""
WRITE_SECONDS_MAX = 5.0


class ValueLayout:
    """The layout of one codec's values in Redis. A chunk is HEADER followed by a part of the payload.

    A value holds its sample's own tokens. In a batch it is at the start of a row of `payload_bytes`, with zeros behind it.

    Args:
        tags: Makes and checks the tags that authenticate values.
        names: The name of each sample, by the sample's place in the split; None: the place itself.
        own_tokens: Number of each sample's own tokens by its place in the split; None: all of the codec's shape.
    """

    def __init__(
        self,
        codec: Codec,
        tags: Tags,
        names: Sequence[int] | np.ndarray | None = None,
        own_tokens: np.ndarray | None = None,
    ) -> None:
        self._tags, self._names, self._own_tokens = tags, names, own_tokens
        self._dtype, self._shape, self._token_bytes = codec.stored_dtype, codec.value_shape, codec.token_bytes
        self.payload_bytes = codec.payload_bytes
        self._cuts: dict[int, list[tuple[int, int]]] = {}

    @property
    def mean_value_bytes(self) -> int:
        """Mean bytes of a sample in Redis over all samples, headers included, rounded up."""
        lengths = [self._shape[0]] if self._own_tokens is None else self._own_tokens
        counts = Counter(int(length) for length in lengths)
        return -(-sum(self._bytes(length) * count for length, count in counts.items()) // len(lengths))

    def name(self, sample: int) -> int:
        """The name of a sample of the split in the cache."""
        return sample if self._names is None else int(self._names[sample])

    def tokens(self, sample: int) -> int:
        """Number of a sample's tokens that its value holds."""
        return self._shape[0] if self._own_tokens is None else int(self._own_tokens[sample])

    def value_bytes(self, sample: int) -> int:
        """Bytes of a sample in Redis, headers included."""
        return self._bytes(self.tokens(sample))

    def keys(self, identity: CacheIdentity, sample: int, variant: int) -> list[bytes]:
        """The keys of one sample's chunks, in order.

        Args:
            identity: of the boundary.
            sample: the sample's place in the split.
            variant: its augmentation variant.
        """
        name = self.name(sample)
        return [identity.key(name, variant, chunk) for chunk in range(len(self._bounds(self.tokens(sample))))]

    def pieces(self, payload: memoryview, sample: int) -> list[memoryview]:
        """The chunks of a sample's value in its row of `payload_bytes`, as views."""
        assert len(payload) == self.payload_bytes, f"payload of {len(payload)} bytes, layout of {self.payload_bytes}"
        return [payload[start:end] for start, end in self._bounds(self.tokens(sample))]

    def clear_padding(self, payload: memoryview, sample: int) -> None:
        """Write zeros behind a sample's value in its row."""
        if (tokens := self.tokens(sample)) < self._shape[0]:
            np.frombuffer(payload, np.uint8)[tokens * self._token_bytes :] = 0

    def header(self, piece: memoryview, key: bytes) -> bytes:
        """The header of one chunk, HEADER.size bytes: type, shape, length and the tag over key and payload."""
        return pack_header(self._dtype, self._shape, piece, key, self._tags)

    def fault(self, header: Sequence[int] | bytes | memoryview, piece: memoryview, key: bytes) -> str | None:
        """Why the chunk that is stored under `key` cannot be used, or None."""
        return header_fault(bytes(header), self._dtype, self._shape, piece, key, self._tags)

    def _bounds(self, tokens: int) -> list[tuple[int, int]]:
        """(begin, end) of the chunks of so many tokens, in bytes."""
        if tokens not in self._cuts:
            self._cuts[tokens] = list(pairwise([0, *accumulate(chunk_sizes(tokens * self._token_bytes))]))
        return self._cuts[tokens]

    def _bytes(self, tokens: int) -> int:
        return tokens * self._token_bytes + len(self._bounds(tokens)) * HEADER.size


@dataclass(frozen=True)
class ReadResult:
    """The result of a read.

    Attributes:
        hits: whether the value of sample i is complete and valid, for each i.
        corrupt: number of samples with a torn, foreign or mistyped chunk.
        bytes_read: bytes received.
        seconds: duration of the read.
        processor_seconds: of all threads that read and checked.
    """

    hits: list[bool]
    corrupt: int
    bytes_read: int
    seconds: float
    processor_seconds: float


def read_values(
    lane: Lane,
    layout: ValueLayout,
    identity: CacheIdentity,
    samples: Sequence[int],
    variants: Sequence[int],
    payloads: memoryview,
    rows: Sequence[int] | None = None,
) -> ReadResult:
    """Fetch sample i's value into row rows[i] (or i) of `payloads`. Rows of misses are undefined.

    Blocks at most READ_SECONDS_MAX plus one timeout of a shard (0.5 s), plus the time for checksums.

    Args:
        lane: the connections to the shards.
        layout: layout of keys and values.
        identity: of the boundary.
        samples, variants: equally long; samples by their place in the split.
        payloads: rows of layout.payload_bytes each, one behind the other.
        rows: row of each sample; None: the samples' own order.
    """
    started, busy, others = time.monotonic(), time.thread_time(), lane.others_seconds
    keys: list[bytes] = []
    pieces: list[memoryview] = []
    chunks: list[range] = []
    for index, (sample, variant) in enumerate(zip(samples, variants, strict=True)):
        start = (index if rows is None else rows[index]) * layout.payload_bytes
        payload = payloads[start : start + layout.payload_bytes]
        first = len(keys)
        keys.extend(layout.keys(identity, sample, variant))
        pieces.extend(layout.pieces(payload, sample))
        chunks.append(range(first, len(keys)))
        layout.clear_padding(payload, sample)
    headers = memoryview(bytearray(len(keys) * HEADER.size))
    targets = [[headers[place * HEADER.size : (place + 1) * HEADER.size], piece] for place, piece in enumerate(pieces)]

    faults: list[str | None] = [None] * len(keys)

    def check(index: int) -> None:
        faults[index] = layout.fault(*targets[index], keys[index])

    outcomes = lane.fetch(keys, targets, started + READ_SECONDS_MAX, check)
    hits, corrupt = [], 0
    for of_sample in chunks:
        unusable = any(outcomes[chunk] is Outcome.UNUSABLE or faults[chunk] is not None for chunk in of_sample)
        corrupt += unusable
        hits.append(not unusable and all(outcomes[chunk] is Outcome.DONE for chunk in of_sample))
    bytes_read = sum(len(targets[i][1]) + HEADER.size for i, outcome in enumerate(outcomes) if outcome is Outcome.DONE)
    processor_seconds = time.thread_time() - busy + lane.others_seconds - others
    return ReadResult(hits, corrupt, bytes_read, time.monotonic() - started, processor_seconds)


def store_values(
    lane: Lane, layout: ValueLayout, identity: CacheIdentity, samples: Sequence[int], variants: Sequence[int], payloads: Tensor
) -> tuple[list[Outcome | None], float]:
    """Store the samples' own tokens.

    Args:
        lane: the connections to the shards.
        layout: layout of keys and values.
        identity: of the boundary.
        samples, variants: equally long; samples by their place in the split.
        payloads: uint8 (n, payload_bytes), on the host.

    Returns:
        The outcome of each sample (None: not all of it was sent), and the seconds that this took.
    """
    started = time.monotonic()
    memory = memoryview(payloads.contiguous().view(-1).numpy())
    items: list[tuple[bytes, Sequence[Buffer]]] = []
    counts: list[int] = []
    for index, (sample, variant) in enumerate(zip(samples, variants, strict=True)):
        pieces = layout.pieces(memory[index * layout.payload_bytes : (index + 1) * layout.payload_bytes], sample)
        keys = layout.keys(identity, sample, variant)
        items.extend((key, (layout.header(piece, key), piece)) for key, piece in zip(keys, pieces, strict=True))
        counts.append(len(keys))
    chunks = iter(lane.store(items, started + WRITE_SECONDS_MAX))
    outcomes: list[Outcome | None] = []
    for count in counts:
        of_sample = list(islice(chunks, count))
        whole = all(outcome is Outcome.DONE for outcome in of_sample)
        outcomes.append(Outcome.DONE if whole else Outcome.REFUSED if Outcome.REFUSED in of_sample else None)
    return outcomes, time.monotonic() - started
