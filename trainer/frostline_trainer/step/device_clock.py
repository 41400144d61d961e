"""Time as a device takes it: marks in the order of its work, and the seconds between two of them.

A GPU runs behind the thread that gives it work: what that thread measures is how long it took to hand the work over. So times of
a step are taken by marks that the device itself comes to, and are read when it has come there (docs/protocols.md 7.6).
"""

import time
from dataclasses import dataclass
from typing import Protocol

import torch


class Mark(Protocol):
    """A place in what a device was given to do."""

    def query(self) -> bool:
        """Whether the device has come here. Raises the device's own error (torch.AcceleratorError) where it failed before."""
        ...


class DeviceClock(Protocol):
    """Marks in a device's queue of work, and the time between two of them.

    runs_behind: a call that gives the device work may return before the work is done.
    """

    runs_behind: bool

    def mark(self) -> Mark:
        """Mark the end of what the device was given so far."""
        ...

    def seconds(self, start: Mark, end: Mark) -> float:
        """What the device took from one of its marks to a later one; it has come to both."""
        ...


@dataclass(frozen=True)
class HostMark:
    """A mark on the host, where work is done when its call returns.

    at: by `time.perf_counter`.
    """

    at: float

    def query(self) -> bool:
        """True: what was called before the mark has returned, so it is done."""
        return True


class HostClock:
    """A CPU's: it has done everything when a call returns."""

    runs_behind = False

    def mark(self) -> HostMark:
        """The time of the call itself."""
        return HostMark(time.perf_counter())

    def seconds(self, start: HostMark, end: HostMark) -> float:
        """Seconds of wall-clock time between two calls of `mark`."""
        return end.at - start.at


class CudaClock:
    """A GPU's: timed events on the stream that the calling thread computes on."""

    runs_behind = True

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """A timed event at the end of the calling thread's current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds between two events that the device has come to; CUDA counts milliseconds."""
        return start.elapsed_time(end) / 1000.0


def clock_of(device: torch.device) -> DeviceClock:
    """The clock of a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()
