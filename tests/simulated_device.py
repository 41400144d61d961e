"""A device that is behind the thread that gives it work, as seen from its marks (step/device_clock.py)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch


@dataclass
class SimulatedDevice:
    """The clock of a device, used as a context's `device_clock`. A mark is one second after the mark before it.

    Attributes:
        looks: number of queries of a mark before the device reaches it.
        errors: by the number of a mark (from 1) the error that a query of it raises, from then on always, as a broken CUDA
            context does.
        stuck: numbers of marks that the device never reaches.
        log: "marked N" and "done N", in order.
        at_look: called at every query, with the mark's number.
    """

    looks: int = 3
    errors: dict[int, RuntimeError] = field(default_factory=dict)
    stuck: set[int] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    at_look: Callable[[int], None] = lambda number: None
    marks: int = 0
    broken: RuntimeError | None = None
    runs_behind = True

    def mark(self) -> "SimulatedMark":
        if self.broken is not None:
            raise self.broken
        self.marks += 1
        self.log.append(f"marked {self.marks}")
        return SimulatedMark(self, self.marks, self.looks)

    def seconds(self, start: "SimulatedMark", end: "SimulatedMark") -> float:
        return float(end.number - start.number)


@dataclass
class SimulatedMark:
    device: SimulatedDevice
    number: int
    left: int
    reached: bool = False

    def query(self) -> bool:
        device = self.device
        if self.reached and device.broken is None:
            return True
        device.at_look(self.number)
        device.broken = device.broken or device.errors.get(self.number)
        if device.broken is not None:
            raise device.broken
        self.left -= 1
        if self.number in device.stuck or self.left >= 0:
            return False
        device.log.append(f"done {self.number}")
        self.reached = True
        return True


def device_error() -> RuntimeError:
    """Return the error of torch after a failed kernel; the context is of no use afterwards."""
    return torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


@dataclass
class TimedDevice:
    """A device with its own time: `compute` and `wait_until` are the durations of its kernels, in seconds from 0.

    given: the end of the work given so far. now: the device's present time; None: all of its work is done.
    """

    given: float = 0.0
    now: float | None = None
    runs_behind = True

    def compute(self, seconds: float) -> None:
        self.given += seconds

    def wait_until(self, moment: float) -> None:
        self.given = max(self.given, moment)

    def mark(self) -> SimpleNamespace:
        at = self.given
        return SimpleNamespace(at=at, query=lambda: self.now is None or at <= self.now)

    def seconds(self, start: SimpleNamespace, end: SimpleNamespace) -> float:
        return end.at - start.at
