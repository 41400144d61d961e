"""Admission: which share of a boundary's values may be stored. A pure function of the memory budget and of earlier promises.

Redis evicts nothing: with a new order of samples in each epoch, a cache that evicts has far fewer hits than one that does not. So
values beyond the budget are not stored. A hash chooses the stored samples, the same ones for every worker and every epoch.
"""

from dataclasses import dataclass

from frostline_contract.cache_identity import HEADER, chunk_sizes

KEY_OVERHEAD_BYTES = 160
"""Redis' own memory for a value: hash-table entry, key string of 35 bytes, object and string headers."""

USABLE_SHARE = 0.92
"""The share of the memory limit that values may take. The rest is for output buffers, which count against maxmemory, and for the
growth of the hash table."""

SERVER_BASE_BYTES = 1 << 20
"""Memory of an empty shard."""


@dataclass(frozen=True)
class Admission:
    """The answer for a boundary.

    Attributes:
        fraction: share of (sample, variant) pairs that may be stored, 0.0 to 1.0.
        promised_bytes: memory of that share.
        reason: in words.
    """

    fraction: float
    promised_bytes: int
    reason: str


def allocated_bytes(size: int) -> int:
    """Return the bytes that jemalloc allocates for `size`: it has four size classes between two powers of two."""
    if size <= 16:
        return 16
    step = max(16, 1 << ((size - 1).bit_length() - 3))
    return -(-size // step) * step


def stored_bytes(value_bytes: int) -> int:
    """Return the Redis memory of one value with its chunks and keys.

    Args:
        value_bytes: the value with its headers, as trainers report it.
    """
    pieces = chunk_sizes(max(1, value_bytes - HEADER.size))
    return sum(allocated_bytes(piece + HEADER.size + 16) + KEY_OVERHEAD_BYTES for piece in pieces)


def usable_bytes(limit_bytes: int, num_shards: int) -> int:
    """Return the bytes of all shards' memory limit that values may take."""
    return max(0, int((limit_bytes - num_shards * SERVER_BASE_BYTES) * USABLE_SHARE))


def admit(usable: int, promised_elsewhere: int, samples: int, value_bytes: int, at_least: float = 0.0) -> Admission:
    """Return the share of an identity's values that fits.

    Args:
        usable: bytes that all values may take.
        promised_elsewhere: bytes promised to other identities that are still in use.
        samples: number of values.
        value_bytes: of one value, with headers.
        at_least: the share promised before. A promise only grows, because values have been stored under it.
    """
    need = samples * stored_bytes(value_bytes)
    if need <= 0:
        return Admission(0.0, 0, f"nothing to store: {samples} samples of {value_bytes} bytes")
    if usable <= 0:
        text = "no memory limit is known or it is too small: set maxmemory in Redis, or cache.memory_bytes"
        return Admission(at_least, int(at_least * need), text)
    room = max(0, usable - promised_elsewhere)
    fits = min(1.0, room / need)
    fraction = max(at_least, fits)
    text = f"{room} of {usable} bytes are free for {samples} values of {stored_bytes(value_bytes)} bytes"
    if fits < at_least:
        text += f"; {at_least:.3f} was promised before"
    elif fraction < 1.0:
        text += f"; {promised_elsewhere} are promised to other boundaries"
    return Admission(fraction, int(fraction * need), text)
