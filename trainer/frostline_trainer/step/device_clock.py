"""The device's clock: timed marks in a device's queue of work, and the seconds between two of them.

A GPU runs behind the thread that queues its work, so the thread's own clock measures only how long queueing took. Times of a step
are therefore measured by marks in the queue (CUDA events), and read after the device has passed them (docs/protocols.md 7.6).
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch

from frostline_contract.job import Job


class Mark(Protocol):
    """A place in a device's queue of work."""

    def query(self) -> bool:
        """Whether the device has reached the mark. Raises the device's own error (torch.AcceleratorError) if it failed before."""
        ...


class DeviceClock(Protocol):
    """Marks in a device's queue of work, and the time between two of them.

    runs_behind: whether a call that queues work may return before the work is done.
    """

    runs_behind: bool

    def mark(self) -> Mark:
        """A mark at the end of the work that is queued so far."""
        ...

    def seconds(self, start: Mark, end: Mark) -> float:
        """The device's seconds from one mark to a later one; it must have reached both."""
        ...

    def of_turns(self, seconds: Sequence[float]) -> float:
        """The seconds of work that was measured several times."""
        ...


@dataclass(frozen=True)
class HostMark:
    """A mark on the host, where work is done when its call returns.

    at: its time by `time.perf_counter`, seconds.
    """

    at: float

    def query(self) -> bool:
        """True: all calls before the mark have returned, so their work is done."""
        return True


class HostClock:
    """The clock of a CPU, which has done all work when a call returns. now: returns seconds; None: wall-clock time."""

    runs_behind = False

    def __init__(self, now: Callable[[], float] | None = None) -> None:
        self._now = now or time.perf_counter

    def mark(self) -> HostMark:
        """A mark with the time of this call."""
        return HostMark(self._now())

    def seconds(self, start: HostMark, end: HostMark) -> float:
        """Seconds between two calls of `mark`."""
        return end.at - start.at

    def of_turns(self, seconds: Sequence[float]) -> float:
        """The least: other load on the machine only adds time."""
        return min(seconds)


class QuotaClock:
    """The clock of a CPU worker with a quota (placement.worker_cpus), for measurements that a plan is made from.

    Such a worker computes at full speed until it has used its share of the quota's period, and is stopped for the rest of the
    period. So a single short computation would be measured at full speed, while a step, which computes all the time, gets only
    the share. This clock counts the seconds that work takes in a step: the processor seconds of all threads of the process,
    divided by the share. Waiting takes none of them.

    Args:
        processors: average number of processors available to the worker.
    """

    runs_behind = False

    def __init__(self, processors: float) -> None:
        self._processors = processors

    def mark(self) -> HostMark:
        """A mark with the processor seconds that the process has used."""
        return HostMark(time.process_time())

    def seconds(self, start: HostMark, end: HostMark) -> float:
        """Seconds that the work between two calls of `mark` takes as a part of sustained work."""
        return self.lasts(end.at - start.at)

    def lasts(self, processor_seconds: float) -> float:
        """Seconds that work of so many processor seconds takes as a part of sustained work."""
        return processor_seconds / self._processors

    def of_turns(self, seconds: Sequence[float]) -> float:
        """The median: what other workers on the machine add, by its caches, they add in steps as well."""
        return median(seconds)


class CudaClock:
    """The clock of a GPU: timed events on the calling thread's current stream."""

    runs_behind = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """A timed event at the end of the calling thread's current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds between two events that the device has reached (CUDA counts milliseconds)."""
        return start.elapsed_time(end) / 1000.0

    def of_turns(self, seconds: Sequence[float]) -> float:
        """The least: other load on the device only adds time."""
        return min(seconds)


def clock_of(device: torch.device) -> DeviceClock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


def quota_clock_of(job: Job, device: torch.device) -> QuotaClock | None:
    """The clock of a CPU worker with a quota; None for other workers."""
    processors = processors_of(job)
    return QuotaClock(processors) if processors is not None and device.type == "cpu" else None


def processors_of(job: Job) -> float | None:
    """Average number of processors available to a worker; None without a CPU quota."""
    share = job.placement.worker_cpus
    return min(share, float(job.training.threads)) if share is not None else None
