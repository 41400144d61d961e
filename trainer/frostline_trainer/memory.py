"""Measures the bytes that tensors take: by the device's allocator on a GPU, storage by storage elsewhere."""

import ctypes
import os
import resource
import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
"""The environment variable that configures torch's allocator of GPU memory."""


TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
"""Parameters of the C library's `mallopt` (glibc's malloc.h): freed bytes at the heap's end that it keeps, and bytes from which
on a block has pages of its own, which go back when it is freed."""
KEPT_BYTES, OWN_PAGES_BYTES = 2**30, 2**25


def settle_allocator(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let this process's allocators keep what a step frees for the next step, unless the user has set otherwise.

    GPU memory comes in growing segments, since a reshape changes the sizes of tensors. The C library's heap is not given back to
    the system page by page after each backward pass, only to be taken again, which costs a CPU's step some percent.
    """
    environment.setdefault(ALLOCATOR, "expandable_segments:True")
    if not any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in environment):
        library = ctypes.CDLL(None)
        if hasattr(library, "mallopt"):  # other C libraries have none
            library.mallopt(MMAP_THRESHOLD, OWN_PAGES_BYTES)
            library.mallopt(TRIM_THRESHOLD, KEPT_BYTES)


def forget_peak(device: torch.device) -> None:
    """Reset the peak, and return the allocator's unused memory to the device or the system."""
    if on_gpu(device):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    elif hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def peak_of(device: torch.device) -> tuple[int, int]:
    """(most bytes that tensors held since `forget_peak`, bytes of the device). On a CPU: the process's own peak, and 0."""
    if on_gpu(device):
        return torch.cuda.max_memory_allocated(device), torch.cuda.get_device_properties(device).total_memory
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, 0


def free_bytes(device: torch.device) -> int:
    """Free bytes of the device, beside all processes that use it; 0 for a CPU."""
    return torch.cuda.mem_get_info(device)[0] if on_gpu(device) else 0


def on_gpu(device: torch.device) -> bool:
    """Whether bytes on this device are counted by CUDA's allocator."""
    return device.type == "cuda" and torch.cuda.is_available()


class Meter:
    """Counts bytes on a device beyond those at the beginning. now: bytes alive now. peak: the most at any time."""

    now: int
    peak: int


class LiveBytes(TorchDispatchMode, Meter):
    """A context that counts the storages that operations create on a device; it costs a call for each operation.

    A kernel's own workspace is not counted.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._known: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for tensor in _tensors((args, kwargs)):
            self._know(tensor, 0)  # created before the context
        result = func(*args, **(kwargs or {}))
        for tensor in _tensors(result):
            self._know(tensor, tensor.untyped_storage().nbytes())
        return result

    def _know(self, tensor: torch.Tensor, size: int) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if tensor.device.type != self._device.type or key in self._known:
            return
        self._known[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key).atexit = False

    def _forget(self, key: int) -> None:
        self.now -= self._known.pop(key)


class AllocatorBytes(Meter):
    """Counts by CUDA's caching allocator, which includes workspaces and costs nothing."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        torch.cuda.reset_peak_memory_stats(device)
        self._before = torch.cuda.memory_allocated(device)

    @property
    def now(self) -> int:
        """Bytes of tensors on the device beyond those at the beginning."""
        return torch.cuda.memory_allocated(self._device) - self._before

    @property
    def peak(self) -> int:
        """The most bytes since the last reset of the peak, beyond those at the beginning."""
        return torch.cuda.max_memory_allocated(self._device) - self._before


@contextmanager
def metered(device: torch.device) -> Iterator[Meter]:
    """A context that counts the bytes that tensors take on a device."""
    if on_gpu(device):
        yield AllocatorBytes(device)
        return
    with LiveBytes(device) as meter:
        yield meter


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided)
