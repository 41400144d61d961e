"""A device that is behind its host, on a CPU: operations are queued, and done by a thread of the device when the host waits.

The device is as lazy as possible: nothing is done before the host waits for it. The order of a GPU's stream holds here too:
computations, starts of messages, waits for messages. Host reads wait for the device, as with CUDA. Bits are those of the CPU,
since each operation is the CPU's own.

An operation's result tensor must exist before it is computed. Its shape and strides are those that the same operation gave before
with inputs of the same kind: the first time, the operation is done at once, for the whole process.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

AT_ONCE = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.nondeterministic_seeded,
    torch.Tag.inplace_view,
}
"""Operations whose result decides what the host does next, that draw from the process's one generator, or that change a shape."""
Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""(shape, strides, type)."""
_known: dict[Any, Any] = {}
"""Results by operation and inputs: the layouts of the result, or "view" where it lies in an input's memory."""


class RunAhead:
    """One member's device, and its clock (step/device_clock.py).

    wait: called by the device's thread with the event of `wait_for`; returns when the event has happened, or False where the
    device has to end. changed: called when the host begins or ends a wait.
    """

    runs_behind = True

    def __init__(self, wait: Callable[[Any], bool], changed: Callable[[], None] = lambda: None) -> None:
        self._wait, self._changed = wait, changed
        self._queue: deque[Callable[[], bool | None]] = deque()
        self._condition = threading.Condition()
        self._given = self._done = self._wanted = 0
        self._ended = False
        self.failed: BaseException | None = None
        self.ahead = 0
        self.host_waits = False
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)
        self._thread.start()

    # ---- the host's side

    def give(self, work: Callable[[], bool | None]) -> int:
        """Queue work. Returns its number, from 1."""
        with self._condition:
            self._given += 1
            self._queue.append(work)
            self._host(False)
            return self._given

    def wait_for(self, event: Any) -> None:
        """Let the device go on only when `event` has happened."""
        self.give(lambda: self._wait(event))

    def has_done(self, number: int) -> bool:
        """Whether the device has done this work; the call itself makes the device proceed. Raises the error of an operation."""
        with self._condition:
            self._wanted = max(self._wanted, number)
            self._condition.notify_all()
            self._raise()
            if self._done < number:
                self._host(True)
            return self._done >= number

    def drain(self) -> None:
        """Let the host wait until all queued work is done."""
        with self._condition:
            self._wanted = self._given
            self._condition.notify_all()
            while self._done < self._wanted and not self._ended:
                self._raise()
                self._host(True)
                self._condition.wait()
            self._host(False)
            self._raise()

    @property
    def progress(self) -> tuple[int, int]:
        """Return the numbers of works (done, queued)."""
        with self._condition:
            return self._done, self._given

    def mark(self) -> "Mark":
        """Return a mark in the device's work, as the trainer's fence needs it (step/fence.py)."""
        passed: list[float] = []
        return Mark(self, self.give(lambda: passed.append(time.perf_counter())), passed)

    def seconds(self, start: "Mark", end: "Mark") -> float:
        """Return the seconds between two marks that the device has reached."""
        return end.passed[0] - start.passed[0]

    def end(self) -> None:
        """Do no more work: the process to which the device belongs is gone."""
        with self._condition:
            self._ended = True
            self._queue.clear()
            self._condition.notify_all()

    def _host(self, waits: bool) -> None:
        if self.host_waits != waits:
            self.host_waits = waits
            self._changed()

    def _raise(self) -> None:
        if self.failed is not None:
            raise self.failed

    # ---- the device's side

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._ended or (self._queue and self._done < self._wanted))
                if self._ended:
                    return
                work = self._queue.popleft()
            try:
                # Below the version counters too: autograd has counted a write when the host queued it.
                with torch._C._AutoDispatchBelowADInplaceOrView():
                    goes_on = work() is not False
            except BaseException as error:
                self.failed, goes_on = error, False
            with self._condition:
                self._done += 1
                self._ended = self._ended or not goes_on
                self._condition.notify_all()


class Mark:
    """A mark in the device's work. passed: the time at which the device reached it, once it has."""

    def __init__(self, device: RunAhead, number: int, passed: list[float]) -> None:
        self._device, self._number, self.passed = device, number, passed

    def query(self) -> bool:
        return self._device.has_done(self._number)


class OnDevice(TorchDispatchMode):
    """Sends the calling thread's operations to a device, except those inside `on_host`."""

    def __init__(self, device: RunAhead) -> None:
        super().__init__()
        self.device = device
        self.suspended = False

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """Compute in host memory and at once inside the block."""
        self.suspended = True
        try:
            yield
        finally:
            self.suspended = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if self.suspended or not tensors or func.is_view:
            return func(*args, **kwargs)
        if AT_ONCE & set(func.tags):
            return self._at_once(func, args, kwargs)
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        key = (func, _kind((args, kwargs)))
        layouts = _known.get(key)
        if layouts is None:
            result = self._at_once(func, args, kwargs)
            _known[key] = _layouts(result, tensors)
            return result
        if layouts == "view":
            return func(*args, **kwargs)
        made = tree_map_only(_Made, _Made.empty, layouts)
        self.device.ahead += 1
        self.device.give(lambda: _fill(made, func(*args, **kwargs)))
        return made

    def _at_once(self, func: Any, args: Any, kwargs: Any) -> Any:
        self.device.drain()
        return func(*args, **kwargs)

    def _in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Queue an operation whose target exists already."""
        written = [one for one in func._schema.returns if one.alias_info is not None and one.alias_info.is_write]
        if len(written) != len(func._schema.returns):
            return self._at_once(func, args, kwargs)
        named = {argument.name: place for place, argument in enumerate(func._schema.arguments)}
        targets = []
        for returned in written:
            argument = next(one for one in func._schema.arguments if _same(one.alias_info, returned.alias_info))
            targets.append(kwargs[argument.name] if argument.name in kwargs else args[named[argument.name]])
        self.device.ahead += 1
        self.device.give(lambda: (func(*args, **kwargs), None)[1])
        return None if not targets else targets[0] if len(targets) == 1 else tuple(targets)


def _same(argument: Any, returned: Any) -> bool:
    """Whether a schema's argument is the same memory as its result."""
    return argument is not None and argument.before_set == returned.before_set


class _Made:
    """A tensor that an operation will produce."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def empty(self) -> torch.Tensor:
        """Return the tensor, filled with NaN, so that no test can take its contents for a result."""
        shape, strides, dtype = self.layout
        made = torch.empty_strided(shape, strides, dtype=dtype)
        return made.fill_(float("nan")) if dtype.is_floating_point else made


def _kind(arguments: Any) -> Any:
    """Return the kind of an operation's inputs: all that its result's layout depends on, without the numbers in tensors."""
    leaves = tree_leaves(arguments)
    return tuple((tuple(one.shape), one.stride(), one.dtype) if isinstance(one, torch.Tensor) else repr(one) for one in leaves)


def _layouts(result: Any, inputs: list[torch.Tensor]) -> Any:
    memory = {one.untyped_storage().data_ptr() for one in inputs if one.numel()}
    given = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
    if any(one.numel() and one.untyped_storage().data_ptr() in memory for one in given):
        return "view"
    return tree_map_only(torch.Tensor, lambda one: _Made((tuple(one.shape), one.stride(), one.dtype)), result)


def _fill(made: Any, result: Any) -> None:
    for target, source in zip(tree_leaves(made), tree_leaves(result), strict=True):
        if isinstance(target, torch.Tensor):
            assert (target.shape, target.stride()) == (source.shape, source.stride()), "another layout than the last time"
            target.copy_(source)
