"""Whole samples out of chunks: fetch, check every chunk, and say which samples are there."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from frostline_contract.cache_identity import HEADER, CacheIdentity
from frostline_trainer.cache.lane import Lane
from frostline_trainer.cache.layout import ValueLayout
from frostline_trainer.cache.resp import Outcome

READ_SECONDS_MAX = 1.5
"""A read ends here even where the shards go on sending slowly; what has not come by then is a miss."""


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
