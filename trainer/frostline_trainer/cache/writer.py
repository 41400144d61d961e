"""Writes into the cache: a bounded queue and a thread. A step only copies; it never waits for Redis."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from frostline_contract.cache_identity import CacheIdentity
from frostline_trainer.cache.codec import Codec
from frostline_trainer.cache.counts import Meter
from frostline_trainer.cache.lane import Lane
from frostline_trainer.cache.outcomes import Outcome
from frostline_trainer.cache.values import WRITE_SECONDS_MAX, ValueLayout, store_values
from frostline_trainer.step.device_clock import HostMark, Mark
from frostline_trainer.step.side_copies import await_copies

QUEUE_BYTES_MAX = 64 << 20
QUEUE_ENTRIES_MAX = 4096
FULL_PAUSE_SECONDS = 5.0
"""Pause in seconds after a write that Redis has refused for lack of memory, since even a refused write sends its payload."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Fill:
    identity: CacheIdentity
    samples: list[int]
    variants: list[int]
    rows: Tensor
    encoded: bool
    copied: Mark

    @property
    def size(self) -> int:
        return self.rows.numel() * self.rows.element_size()


@dataclass(frozen=True)
class _Drop:
    identity: CacheIdentity
    samples: list[int]
    variants: list[int]
    size: int = 0


class Writer:
    """Carries out the fills and drops of one worker, in order, in a thread of its own. Any thread may call.

    Args:
        lane: the writer's own connections to the shards.
        layout: layout of keys and values.
        codec: encodes raw rows.
        meter: counts the writes.
        may_write: whether values of an identity may still be stored.
    """

    def __init__(
        self, lane: Lane, layout: ValueLayout, codec: Codec, meter: Meter, may_write: Callable[[CacheIdentity], bool]
    ) -> None:
        self._lane, self._layout, self._codec, self._meter = lane, layout, codec, meter
        self._may_write = may_write
        self._changed = threading.Condition()
        self._queue: deque[_Fill | _Drop] = deque()
        self._queued_bytes = 0
        self._busy = False
        self._closed = False
        self._full_until = 0.0
        self._thread = threading.Thread(target=self._run, name="cache-writer", daemon=True)
        self._thread.start()

    def room_for(self, rows: int, row_bytes: int) -> int:
        """How many of `rows` rows the queue has room for now."""
        with self._changed:
            if len(self._queue) >= QUEUE_ENTRIES_MAX or self._closed:
                return 0
            return min(rows, max(0, QUEUE_BYTES_MAX - self._queued_bytes) // row_bytes)

    def fill(self, identity: CacheIdentity, samples: list[int], variants: list[int], rows: Tensor, encoded: bool,
             copied: Mark | None = None) -> None:  # fmt: skip
        """Queue host rows, which must not change any more.

        Args:
            identity: of the boundary.
            samples, variants: equally long; one for each row.
            rows: raw rows (n, tokens, width), or payloads uint8 (n, payload_bytes) if `encoded`.
            encoded: whether the rows have been through the codec.
            copied: for rows from a device, the mark behind which they are complete; None: they are complete.
        """
        self._put(_Fill(identity, samples, variants, rows, encoded, copied or HostMark(0.0)))

    def drop(self, identity: CacheIdentity, samples: Sequence[int], variants: Sequence[int]) -> None:
        """Queue the removal of samples; if the queue is full, the cache server's sweeper removes them later."""
        with self._changed:
            if len(self._queue) >= QUEUE_ENTRIES_MAX:
                return
        self._put(_Drop(identity, list(samples), list(variants)))

    def flush(self, seconds: float) -> bool:
        """Wait until all queued work is written or dropped. Returns whether that was within `seconds`."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._busy, seconds)

    def close(self) -> None:
        """Stop; fills that are still queued count as dropped."""
        with self._changed:
            self._closed = True
            left = sum(len(entry.samples) for entry in self._queue if isinstance(entry, _Fill))
            self._queue.clear()
            self._changed.notify_all()
        self._meter.add(dropped_fills=left)
        self._thread.join()
        self._lane.close()

    def _put(self, entry: _Fill | _Drop) -> None:
        with self._changed:
            if self._closed:
                return
            self._queue.append(entry)
            self._queued_bytes += entry.size
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._closed or self._queue)
                if self._closed:
                    return
                entry = self._queue.popleft()
                self._queued_bytes -= entry.size
                self._busy = True
            if isinstance(entry, _Fill):
                self._write(entry)
            else:
                self._remove(entry)

    def _write(self, fill: _Fill) -> None:
        if not self._may_write(fill.identity):
            self._meter.add(dropped_fills=len(fill.samples))
            return
        started = time.monotonic()
        if started < self._full_until:
            self._meter.add(refused_fills=len(fill.samples))
            return
        try:
            await_copies(fill.copied)
        except OSError as error:  # the training thread gets the same error
            log.warning("%d samples are not stored: %s", len(fill.samples), error)
            self._meter.add(dropped_fills=len(fill.samples))
            return
        payloads = fill.rows if fill.encoded else self._codec.encode(fill.rows)
        outcomes, seconds = store_values(self._lane, self._layout, fill.identity, fill.samples, fill.variants, payloads)
        done, refused = outcomes.count(Outcome.DONE), outcomes.count(Outcome.REFUSED)
        self._meter.add(
            fills=done,
            refused_fills=refused,
            dropped_fills=len(outcomes) - done - refused,
            bytes_written=sum(
                self._layout.value_bytes(sample)
                for sample, outcome in zip(fill.samples, outcomes, strict=True)
                if outcome is Outcome.DONE
            ),
            write_seconds=seconds,
        )
        self._meter.time("fill", seconds, done)
        if refused:
            if time.monotonic() - self._full_until > 60.0:
                log.warning(
                    "Redis is full: %d of %d samples refused; fills pause for %.0f s", refused, len(outcomes), FULL_PAUSE_SECONDS
                )
            self._full_until = time.monotonic() + FULL_PAUSE_SECONDS

    def _remove(self, drop: _Drop) -> None:
        keys = [
            key
            for sample, variant in zip(drop.samples, drop.variants, strict=True)
            for key in self._layout.keys(drop.identity, sample, variant)
        ]
        self._lane.unlink(keys, time.monotonic() + WRITE_SECONDS_MAX)
