"""Copies a device's tensors to host memory on a stream of its own, in parallel with the steps.

A worker's share of a checkpoint is three times the size of its weights (weights and two moments). Copied on the main stream, it
would delay the next step by its time on the bus. Two rules keep the copies correct: they begin after the work that wrote the
tensors, and a piece is not written again before they are done (`Holdings.tear` is the one place where writing begins). The host
waits for neither.
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
    """The device's main stream, and a side stream for copies."""

    def beside(self) -> AbstractContextManager[object]:
        """A context whose work runs on the side stream, after all work queued so far, without delaying the main stream."""
        ...

    def join(self) -> None:
        """Let work on the main stream from here on wait for all work queued on the side stream."""
        ...

    def keep(self, tensor: torch.Tensor) -> None:
        """Keep the tensor's memory from being reused before the side stream's work is done."""
        ...


class OneStream:
    """Streams of a device that has only one: copies run in the order of its work."""

    def beside(self) -> AbstractContextManager[object]:
        """An empty context: the copies are queued behind the other work."""
        return nullcontext()

    def join(self) -> None:
        """Do nothing: all work is in one order."""

    def keep(self, tensor: torch.Tensor) -> None:
        """Do nothing: memory is reused in the order of the work."""


class CudaStreams:
    """Streams of a GPU: a side stream beside the calling thread's current stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def beside(self) -> AbstractContextManager[object]:
        """A context with the side stream as the current one; it waits for the work of the stream that was current before."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._stream)

    def join(self) -> None:
        """Let the thread's current stream wait for the side stream, on the device."""
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def keep(self, tensor: torch.Tensor) -> None:
        """Tell the caching allocator that the side stream still reads the tensor's memory."""
        tensor.record_stream(self._stream)


class SideCopies:
    """Makes copies of one device's tensors in host memory.

    Args:
        device, clock: called for the device and its clock when copies are made.
        streams: None: those of the device, created with the first copy.
    """

    def __init__(
        self, device: Callable[[], torch.device], clock: Callable[[], DeviceClock], streams: Streams | None = None
    ) -> None:
        self._device, self._clock, self._streams = device, clock, streams
        self._under_way: Mark | None = None

    def of(self, states: Mapping[int, UnitState]) -> tuple[dict[int, UnitState], Mark]:
        """Copy the states of pieces to host memory. Returns the copies, and the mark behind which they are complete.

        Tensors in host memory (on a CPU, all) are copied before this returns.
        """
        streams = self._streams = self._streams or streams_of(self._device())
        with streams.beside():
            copies = {piece: {key: _copy(tensor, streams) for key, tensor in state.items()} for piece, state in states.items()}
            self._under_way = self._clock().mark()
        return copies, self._under_way

    def join(self) -> None:
        """Let the device's later work wait for the copies; called before the tensors are written."""
        if self._under_way is not None and self._streams is not None:
            self._streams.join()
            self._under_way = None


def await_copies(copied: Mark) -> None:
    """Wait until copies are complete. Raises OSError if the device has failed, since the caller writes them to a disk."""
    try:
        while not copied.query():
            time.sleep(POLL_SECONDS)
    except RuntimeError as error:
        raise OSError(f"what was to be written did not come from the device: {error}") from error


def streams_of(device: torch.device) -> Streams:
    """The streams of a device: a side stream of its own on a GPU."""
    return CudaStreams(device) if device.type == "cuda" else OneStream()


def _copy(tensor: torch.Tensor, streams: Streams) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.device.type == "cpu":
        return tensor.clone(memory_format=torch.contiguous_format)
    streams.keep(tensor)
    return to_host(tensor)
