"""Where one sample's value lies: its keys, its chunks, and the headers in front of them."""

from collections.abc import Sequence

from frostline_contract.cache_identity import HEADER, CacheIdentity, chunk_sizes, header_fault, pack_header
from frostline_contract.cache_tag import Tags
from frostline_trainer.cache.codec import Codec


class ValueLayout:
    """How values of one codec are cut into chunks. A chunk in Redis is HEADER followed by a piece of the payload.

    tags: by which own values are known.
    """

    def __init__(self, codec: Codec, tags: Tags) -> None:
        self._tags = tags
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
        return len(self._bounds)

    @property
    def value_bytes(self) -> int:
        """Bytes of one sample in Redis, headers included."""
        return self.payload_bytes + self.num_chunks * HEADER.size

    def keys(self, identity: CacheIdentity, sample: int, variant: int) -> list[bytes]:
        return [identity.key(sample, variant, chunk) for chunk in range(self.num_chunks)]

    def pieces(self, payload: memoryview) -> list[memoryview]:
        """The chunks of one sample's payload, as views."""
        assert len(payload) == self.payload_bytes, f"payload of {len(payload)} bytes, layout of {self.payload_bytes}"
        return [payload[start:end] for start, end in self._bounds]

    def header(self, piece: memoryview, key: bytes) -> bytes:
        return pack_header(self._dtype, self._shape, piece, key, self._tags)

    def fault(self, header: Sequence[int] | bytes | memoryview, piece: memoryview, key: bytes) -> str | None:
        """Why the chunk that was found under `key` cannot be used, or None."""
        return header_fault(bytes(header), self._dtype, self._shape, piece, key, self._tags)
