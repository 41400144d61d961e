"""The device's clock: timed marks in a device's queue of work, and the seconds between two of them.

A GPU runs behind the thread that queues its work, so the thread's own clock measures only how long queueing took. Times of a step
are therefore measured by marks in the queue (CUDA events), and read after the device has passed them (docs/protocols.md 7.6).
"""

import time
from dataclasses import dataclass
from typing import Protocol

import torch


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
    """The clock of a CPU, which has done all work when a call returns."""

    runs_behind = False

    def mark(self) -> HostMark:
        """A mark with the time of this call."""
        return HostMark(time.perf_counter())

    def seconds(self, start: HostMark, end: HostMark) -> float:
        """Seconds of wall-clock time between two calls of `mark`."""
        return end.at - start.at


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


def clock_of(device: torch.device) -> DeviceClock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
