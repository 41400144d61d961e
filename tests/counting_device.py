"""A device that computes nothing and counts: the events for which a step would wait on a GPU, and the bytes that it would
transfer.

Tensors "on the device" are on torch's meta device: they have shapes and types, and the trainer's own code runs on them, forward,
backward, exchange and update. The mode stands between that code and torch. It answers a host read with zeros, since meta tensors
have no values, and counts the read: `READ` where the host waits until the device has computed a value, `BLOCKING` where it waits
for a copy, `COPY` for an asynchronous copy (from or to page-locked memory, with non_blocking). The counts are by phase of the
step. A host tensor among operands on the device is refused, as a GPU refuses it.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from frostline_contract.phases import Phase
from frostline_trainer.step import transfer

DEVICE, HOST = torch.device("meta"), torch.device("cpu")
READ, BLOCKING, COPY = "read", "blocking copy", "copy"
aten = torch.ops.aten
READS = {aten._local_scalar_dense.default: 1.0, aten.equal.default: True, aten.is_nonzero.default: True}
"""Operations by which the host reads a device, with the values that it gets."""
SIZED_BY_VALUES = {aten.nonzero.default, aten.masked_select.default, aten._unique2.default, aten.unique_consecutive.default}
"""Operations after which the host waits until the device knows the size of the result."""
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default}
"""Operations whose indices a GPU takes from the host, in a copy that blocks."""


@dataclass
class Count:
    """times: of one kind of event in one phase. bytes: that crossed between host and device, or were read."""

    times: int = 0
    bytes: int = 0


class CountingDevice(TorchDispatchMode):
    """The device. counts: by (phase, kind). where: the same by the trainer's line, for people. It counts operations under
    `running`."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[tuple[Phase, str], Count] = {}
        self.where: Counter[tuple[Phase, str, str]] = Counter()
        self.operations = 0
        self._phase = Phase.START
        self._page_locked: dict[int, torch.Tensor] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count all computations of the calling thread; page-locked memory is the memory that the trainer requests by
        `transfer`."""
        with mock.patch.object(transfer, "page_locked", self._lock), _Lists(self._count), self:
            yield

    def enter(self, phase: Phase) -> None:
        """Enter a phase: a replacement of a generation's `phase`."""
        self._phase = phase

    def total(self, kind: str) -> Count:
        """Return the count of a kind over all phases."""
        found = [count for (_, one), count in self.counts.items() if one == kind]
        return Count(sum(count.times for count in found), sum(count.bytes for count in found))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        self.operations += 1
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if source is not None and source.device == DEVICE:
            if func in READS:
                self._count(READ, source)
                return READS[func]
            if func in SIZED_BY_VALUES:
                self._count(READ, source)
                return func(torch.zeros(source.shape, dtype=source.dtype), *args[1:], **kwargs).to(DEVICE)
            if func in INDEXING:
                args = (source, [self._index(one) for one in args[1]], *args[2:])
        if func is aten._to_copy.default and torch.device(kwargs.get("device") or source.device) != source.device:
            return self._to_copy(source, **kwargs)
        if func is aten.copy_.default and args[0].device != args[1].device:
            self._cross(args[1], args[0], bool(args[2]) if len(args) > 2 else bool(kwargs.get("non_blocking")))
            return args[0]
        page_locked = kwargs.pop("pin_memory", None)
        made = func(*args, **kwargs)
        return self._lock(made) if page_locked else made

    def _lock(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor, whose memory counts as page-locked; it is kept, so that no other tensor gets its address."""
        if tensor.device == HOST:
            self._page_locked[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    def _index(self, index: torch.Tensor | None) -> torch.Tensor | None:
        if index is None or index.device == DEVICE:
            return index
        self._count(BLOCKING, index)
        return torch.empty(index.shape, dtype=index.dtype, device=DEVICE)

    def _to_copy(self, source: torch.Tensor, dtype: torch.dtype | None = None, device: Any = None, non_blocking: bool = False,
                 **others: Any) -> torch.Tensor:  # fmt: skip
        made = torch.zeros(source.shape, dtype=dtype or source.dtype, device=device)
        self._cross(source, made, non_blocking)
        return made

    def _cross(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
        on_host = source if source.device == HOST else target
        locked = on_host.untyped_storage().data_ptr() in self._page_locked
        self._count(COPY if locked and non_blocking else BLOCKING, source)

    def _count(self, kind: str, tensor: torch.Tensor) -> None:
        count = self.counts.setdefault((self._phase, kind), Count())
        count.times += 1
        count.bytes += tensor.numel() * tensor.element_size()
        self.where[self._phase, kind, _line()] += 1


class _Lists(TorchFunctionMode):
    """Counts indices that are lists: a GPU gets them in a copy that blocks, the meta device without a copy."""

    def __init__(self, count: Callable[[str, torch.Tensor], None]) -> None:
        super().__init__()
        self._count_it = count

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and args[0].device == DEVICE:
            for index in args[1] if isinstance(args[1], tuple) else (args[1],):
                if isinstance(index, list):
                    self._count_it(BLOCKING, torch.tensor(index))
        return func(*args, **(kwargs or {}))


def _line() -> str:
    """Return the innermost line of the trainer on the stack."""
    frames = [frame for frame in traceback.extract_stack() if "frostline_trainer/" in frame.filename]
    return f"{frames[-1].filename.rpartition('frostline_trainer/')[2]}:{frames[-1].lineno}" if frames else "elsewhere"
