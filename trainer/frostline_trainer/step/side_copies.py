"""Copies of a device's tensors into host memory, made beside the device's other work.

A checkpoint's share is three times its weights. Copied in the order of the device's work, it would hold back the next step by as
long as the bus takes for it; so the copies run on a stream of their own. Two things keep them true: they begin behind the work
that wrote the tensors, and nothing writes a piece again before they are done (`Holdings.tear` is the one place where writing
begins). The host waits for neither.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from frostline_trainer.step.device_clock import DeviceClock, Mark
from frostline_trainer.step.transfer import to_host
from frostline_trainer.step.unit_state import UnitState

POLL_SECONDS = 0.005


class Streams(Protocol):
    """Two orders of work on one device."""

    def beside(self) -> AbstractContextManager[object]:
        """What the calling thread gives the device inside comes after all that it was given so far, and holds nothing back."""
        ...

    def join(self) -> None:
        """What the device is given from here on comes after all that was given `beside`."""
        ...

    def keep(self, tensor: torch.Tensor) -> None:
        """The tensor's memory is not given out again before what was given `beside` is done."""
        ...


class OneStream:
    """Copies in the order of the device's work: where there is no other."""

    def beside(self) -> AbstractContextManager[object]:
        """Nothing to arrange: the copies take their turn with the other work."""
        return nullcontext()

    def join(self) -> None:
        """Nothing to wait for: one order has everything."""

    def keep(self, tensor: torch.Tensor) -> None:
        """Nothing to keep: memory is given out again in the order of the work."""


class CudaStreams:
    """A GPU's: a stream beside the one on which the calling thread computes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def beside(self) -> AbstractContextManager[object]:
        """The side stream as the thread's current one, behind an event of the stream that was current so far."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)

    def join(self) -> None:
        """Let the thread's current stream wait for the side stream, on the device."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def keep(self, tensor: torch.Tensor) -> None:
        """Tell the caching allocator that the side stream still reads the tensor's memory."""
        tensor.record_stream(self._stream)


class SideCopies:
    """Copies of one device's tensors.

    device, clock: asked when copies are made. streams: by default those of the device, from the first copy on.
    """

    def __init__(
        self, device: Callable[[], torch.device], clock: Callable[[], DeviceClock], streams: Streams | None = None
    ) -> None:
        self._device, self._clock, self._streams = device, clock, streams
        self._under_way: Mark | None = None

    def of(self, states: Mapping[int, UnitState]) -> tuple[dict[int, UnitState], Mark]:
        """Copies of pieces' states in host memory. Returns them and the mark behind which they are whole.

        What lies in host memory is copied at once; a CPU has nothing else.
        """
        streams = self._streams = self._streams or streams_of(self._device())
        with streams.beside():
            copies = {piece: {key: _copy(tensor, streams) for key, tensor in state.items()} for piece, state in states.items()}
            self._under_way = self._clock().mark()
        return copies, self._under_way

    def join(self) -> None:
        """The tensors are about to be written: the device does that behind the copies."""
        if self._under_way is not None and self._streams is not None:
            self._streams.join()
            self._under_way = None


def await_copies(copied: Mark) -> None:
    """Wait until copies have come from the device. Raises OSError where they never will, for who writes them to a disk."""
    try:
        while not copied.query():
            time.sleep(POLL_SECONDS)
    except RuntimeError as error:
        raise OSError(f"what was to be written did not come from the device: {error}") from error


def streams_of(device: torch.device) -> Streams:
    """A stream of its own beside the device's other work, where it has streams."""
    return CudaStreams(device) if device.type == "cuda" else OneStream()


def _copy(tensor: torch.Tensor, streams: Streams) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return tensor.clone(memory_format=torch.contiguous_format)
    streams.keep(tensor)
    return to_host(tensor)
