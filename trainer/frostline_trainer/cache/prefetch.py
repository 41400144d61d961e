"""Prefetching: a thread reads the samples of coming steps into buffers of its own."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from frostline_contract.cache_identity import CacheIdentity
from frostline_trainer.cache.lane import Lane
from frostline_trainer.cache.values import ReadResult, ValueLayout, read_values

PREFETCH_BYTES_MAX = 256 << 20
"""Limit of values that are fetched and not yet taken; the oldest are dropped, since after a rollback no step takes them."""

WAIT_SECONDS_MAX = 2.0
"""How long `take` waits for a batch that is on its way."""


@dataclass(eq=False)
class _Batch:
    """Values that are read together.

    Attributes:
        identity: of the values.
        pairs: (sample, variant) of each row of `payloads`.
        payloads: uint8 [n, payload_bytes].
        done: set when all values have been read.
        hits: whether each value was there; empty before `done`.
    """

    identity: CacheIdentity
    pairs: list[tuple[int, int]]
    payloads: Tensor
    done: threading.Event = field(default_factory=threading.Event)
    hits: list[bool] = field(default_factory=list)

    @property
    def size(self) -> int:
        return self.payloads.numel()


@dataclass(frozen=True)
class Taken:
    """A prefetched sample: its payload (payload_bytes,) uint8, or None for a miss."""

    payload: Tensor | None


class Prefetcher:
    """Prefetches samples: the training thread calls `ask` and later `take`; a thread of its own reads in between."""

    def __init__(self, lane: Lane, layout: ValueLayout, pin_memory: bool, on_read: Callable[[ReadResult], None]) -> None:
        self._lane, self._layout, self._pin = lane, layout, pin_memory
        self._on_read = on_read
        self._changed = threading.Condition()
        self._waiting: deque[_Batch] = deque()
        self._kept: deque[_Batch] = deque()
        self._identity: CacheIdentity | None = None
        self._places: dict[tuple[int, int], tuple[_Batch, int]] = {}
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="cache-prefetch", daemon=True)
        self._thread.start()

    def ask(self, identity: CacheIdentity, samples: Sequence[int], variants: Sequence[int]) -> None:
        """Read these samples in the background, but those already asked for. Never blocks."""
        with self._changed:
            if identity != self._identity:
                self._forget_all()
                self._identity = identity
            new = [pair for pair in zip(samples, variants, strict=True) if pair not in self._places]
            size = len(new) * self._layout.payload_bytes
            if not new or size > PREFETCH_BYTES_MAX or self._closed:
                return
            while self._kept and sum(batch.size for batch in self._kept) + size > PREFETCH_BYTES_MAX:
                self._forget(self._kept.popleft())
            payloads = torch.empty(len(new), self._layout.payload_bytes, dtype=torch.uint8, pin_memory=self._pin)
            batch = _Batch(identity, new, payloads)
            for row, pair in enumerate(new):
                self._places[pair] = (batch, row)
            self._kept.append(batch)
            self._waiting.append(batch)
            self._changed.notify()

    def take(self, identity: CacheIdentity, samples: Sequence[int], variants: Sequence[int]) -> list[Taken | None]:
        """Take the prefetched samples, each once; None for a sample that was not prefetched. Waits at most WAIT_SECONDS_MAX."""
        with self._changed:
            known = self._places if identity == self._identity else {}
            places = [known.pop(pair, None) for pair in zip(samples, variants, strict=True)]
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        taken: list[Taken | None] = []
        for place in places:
            if place is None:
                taken.append(None)
                continue
            batch, row = place
            there = batch.done.wait(max(0.0, deadline - time.monotonic())) and batch.hits[row]
            taken.append(Taken(batch.payloads[row] if there else None))
        return taken

    def take_whole(self, identity: CacheIdentity, samples: Sequence[int], variants: Sequence[int]) -> Tensor | None:
        """These samples' payloads (n, payload_bytes) as a view of their receive buffer, if they are there in this order.

        None if they are not, or if one missed: then nothing is taken. The caller owns the memory from now on. Waits at most
        WAIT_SECONDS_MAX.
        """
        pairs = list(zip(samples, variants, strict=True))
        with self._changed:
            known = self._places if identity == self._identity else {}
            batch, first = known.get(pairs[0], (None, 0)) if pairs else (None, 0)
            if batch is None or batch.pairs[first : first + len(pairs)] != pairs or not all(map(known.__contains__, pairs)):
                return None
        rows = slice(first, first + len(pairs))
        if not (batch.done.wait(WAIT_SECONDS_MAX) and all(batch.hits[rows])):
            return None
        with self._changed:
            for pair in pairs:
                self._places.pop(pair, None)
        return batch.payloads[rows]

    def forget_all(self) -> None:
        """Drop all values, because the boundary has moved."""
        with self._changed:
            self._forget_all()

    def _forget_all(self) -> None:
        while self._kept:
            self._forget(self._kept.popleft())

    def close(self) -> None:
        """End the thread, after the read that is under way, and close its connections."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        self._lane.close()

    def _forget(self, batch: _Batch) -> None:
        for pair in batch.pairs:
            if self._places.get(pair, (None, 0))[0] is batch:
                del self._places[pair]
        if not batch.done.is_set() and batch in self._waiting:
            self._waiting.remove(batch)
            batch.hits = [False] * len(batch.pairs)
            batch.done.set()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                batch = self._waiting.popleft()
            result = read_values(
                self._lane,
                self._layout,
                batch.identity,
                [sample for sample, _ in batch.pairs],
                [variant for _, variant in batch.pairs],
                memoryview(batch.payloads.view(-1).numpy()),
            )
            self._on_read(result)
            batch.hits = result.hits
            batch.done.set()
            with self._changed:
                self._trim()

    def _trim(self) -> None:
        """Drop batches of which all samples were taken."""
        wanted = {id(batch) for batch, _ in self._places.values()}
        self._kept = deque(batch for batch in self._kept if id(batch) in wanted)
