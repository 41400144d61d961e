"""Counts of a worker's use of the cache, in samples, bytes and seconds."""

import dataclasses
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from frostline_trainer.cache.values import ReadResult


@dataclass(frozen=True)
class CacheCounts:
    """Sums over a period. Those of `CACHE_COUNTS` are sent to the cache server under their names (ReportUse)."""

    hits: int = 0
    misses: int = 0
    previous_hits: int = 0
    """Samples found at the previous boundary; each of them is a miss of the current one too."""
    fills: int = 0
    dropped_fills: int = 0
    refused_fills: int = 0
    corrupt: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    read_seconds: float = 0.0
    """Seconds spent fetching, by the training thread or by prefetch."""
    write_seconds: float = 0.0
    audited: int = 0
    audit_failures: int = 0

    def minus(self, earlier: "CacheCounts") -> "CacheCounts":
        """The difference to an earlier count, field by field."""
        return CacheCounts(
            **{field.name: getattr(self, field.name) - getattr(earlier, field.name) for field in dataclasses.fields(self)}
        )


KINDS = ("fetch", "fill", "exposed", "own", "hidden")
"""What is timed, in the order of the fields of `CacheSeconds`."""


@dataclass(frozen=True)
class CacheSeconds:
    """Measured seconds per sample, a rolling mean; None: nothing was measured yet.

    Attributes:
        exposed_seconds_per_sample: for which a step waits.
        own_processor_seconds_per_sample: the training thread's processor time of these.
        hidden_processor_seconds_per_sample: processor time of reads ahead, beside the training thread.
    """

    fetch_seconds_per_sample: float | None
    fill_seconds_per_sample: float | None
    exposed_seconds_per_sample: float | None
    own_processor_seconds_per_sample: float | None
    hidden_processor_seconds_per_sample: float | None


class Meter:
    """Adds up counts from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals = CacheCounts()
        self._marks: dict[str, CacheCounts] = {}
        self._waited = self._busy = 0.0  # seconds of the training thread, by the clock and by its processor
        self._left_out = 0
        self._rates = {kind: _Rate() for kind in KINDS}

    def add(self, **amounts: float) -> None:
        """Add to counts by their names, from any thread."""
        with self._lock:
            values = {name: getattr(self._totals, name) + amount for name, amount in amounts.items()}
            self._totals = dataclasses.replace(self._totals, **values)

    def since_last(self, reader: str) -> CacheCounts:
        """The counts since the last call of `reader`."""
        with self._lock:
            before = self._marks.get(reader, CacheCounts())
            self._marks[reader] = self._totals
            return self._totals.minus(before)

    def bytes_moved(self) -> tuple[int, int]:
        """(written, read) so far."""
        with self._lock:
            return self._totals.bytes_written, self._totals.bytes_read

    def give_back(self, reader: str, counts: CacheCounts) -> None:
        """Return counts that `reader` could not deliver; they are part of its next call's result."""
        with self._lock:
            self._marks[reader] = self._marks.get(reader, CacheCounts()).minus(counts)

    def time(self, what: str, seconds: float, samples: int) -> None:
        """Add seconds of one of KINDS for so many samples; ignored for no samples."""
        if samples > 0:
            with self._lock:
                self._rates[what].add(seconds, samples)

    def count_read(self, result: ReadResult) -> None:
        """Count a read of values."""
        self.add(corrupt=result.corrupt, bytes_read=result.bytes_read, read_seconds=result.seconds)
        self.time("fetch", result.seconds, sum(result.hits))

    def count_ahead(self, result: ReadResult) -> None:
        """Count a read of values ahead of the steps that take them."""
        self.count_read(result)
        self.time("hidden", *_of_hits(result.processor_seconds, result.hits))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Time what a step waits for; it is kept until `count_used`, since a read may take two attempts."""
        started, busy = time.monotonic(), time.thread_time()
        yield
        self._waited += time.monotonic() - started
        self._busy += time.thread_time() - busy

    def leave_out(self, reads: int) -> None:
        """Leave so many of the next reads out of the cost of a hit, where they were not prefetched."""
        self._left_out = reads

    def count_used(self, hits: Sequence[bool], prefetched: bool = False) -> None:
        """Count a read for a step, and what was waited for as the cost of its hits; misses have their share of that.

        Args:
            hits: of each sample.
            prefetched: whether all samples were.
        """
        self.add(hits=sum(hits), misses=len(hits) - sum(hits))
        if self._left_out > 0 and not prefetched:
            self._left_out -= 1
        else:
            self.time("exposed", *_of_hits(self._waited, hits))
            self.time("own", *_of_hits(self._busy, hits))
        self._waited = self._busy = 0.0

    def profile(self) -> CacheSeconds:
        """Rolling seconds a sample of each of KINDS, for the planner."""
        with self._lock:
            return CacheSeconds(*(self._rates[what].value() for what in KINDS))


def _of_hits(seconds: float, hits: Sequence[bool]) -> tuple[float, int]:
    """Seconds of the hits among samples that were read together, and their number."""
    return seconds * sum(hits) / max(1, len(hits)), sum(hits)


class _Rate:
    """Seconds per sample over about the last thousand samples."""

    MEMORY_SAMPLES = 1000.0

    def __init__(self) -> None:
        self._seconds = self._samples = 0.0

    def add(self, seconds: float, samples: int) -> None:
        keep = max(0.0, 1.0 - samples / self.MEMORY_SAMPLES)
        self._seconds = self._seconds * keep + seconds
        self._samples = self._samples * keep + samples

    def value(self) -> float | None:
        return self._seconds / self._samples if self._samples else None
