"""How much of a boundary may be stored: a pure function of the budget and of what others were promised.

Redis evicts nothing (an LRU under per-epoch permutations hits far less than never evicting), so what does not fit is not
stored, and who is stored is chosen by hash: the same samples for every worker and every epoch.
"""

from dataclasses import dataclass

from frostline_contract.cache_identity import HEADER, chunk_sizes

KEY_OVERHEAD_BYTES = 160
"""Redis' own per value: hash-table entry, key string of 35 bytes, object, string headers."""

USABLE_SHARE = 0.92
"""Of the memory limit: the rest is for output buffers, which count against maxmemory, and for the hash table's growth."""

SERVER_BASE_BYTES = 1 << 20
"""What an empty shard uses itself."""


@dataclass(frozen=True)
class Admission:
    """The verdict on a boundary's values: how many of them may be stored, and why.

    fraction: share of (sample, variant) pairs that may be stored. promised_bytes: the memory that this stands for.
    """

    fraction: float
    promised_bytes: int
    reason: str


def allocated_bytes(size: int) -> int:
    """Bytes that an allocator with four size classes a doubling (jemalloc's) takes for `size`."""
    if size <= 16:
        return 16
    step = max(16, 1 << ((size - 1).bit_length() - 3))
    return -(-size // step) * step


def stored_bytes(value_bytes: int) -> int:
    """Redis memory for one value, its chunks and keys. value_bytes: with headers, as trainers report it."""
    pieces = chunk_sizes(max(1, value_bytes - HEADER.size))
    return sum(allocated_bytes(piece + HEADER.size + 16) + KEY_OVERHEAD_BYTES for piece in pieces)


def usable_bytes(limit_bytes: int, num_shards: int) -> int:
    """The part of all shards' memory limit that values may take."""
    return max(0, int((limit_bytes - num_shards * SERVER_BASE_BYTES) * USABLE_SHARE))


def admit(usable: int, promised_elsewhere: int, samples: int, value_bytes: int, at_least: float = 0.0) -> Admission:
    """The share of an identity's values that fits.

    usable: bytes that values may take. promised_elsewhere: bytes promised to other identities that are still in use.
    at_least: what this identity was promised before; it may only grow, because its values are there.
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
