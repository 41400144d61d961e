"""NCCL: how its communicators are made, connected, ended, and a Transport over them.

NCCL runs the operations of a communicator one after the other, in the order of their calls, on one stream a device; it ignores
tags, and a send waits for its receive once a message exceeds the library's buffers (ProcessGroupNCCL makes no difference between
the two directions of a pair). So each ordered pair (sender, receiver) has a communicator of its own, and the messages of a
channel wait for nothing but each other. Communicators are connected before a step needs them, in a thread, since the library's
call cannot be interrupted, and never beside a step: what makes a communicator may wait until its device is idle, which is a
deadlock where that device waits for a peer in the same position. An abort ends what is under way without an error and leaves
anything in its memory; whoever reads results asks `check` first.
"""

import os
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from frostline_contract.usage import Way
from frostline_trainer.transport.traffic import Tally, Traffic
from frostline_trainer.transport.waiting import blocked

ENVIRONMENT = {
    # The library's watchdog would end the process of every survivor of a failure; who is gone is decided elsewhere.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    # Seconds after which a connection that its peer never comes to ends by itself, in the thread that was left with it.
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": "60",
    # What torch sets by itself under deterministic algorithms, but later and in a thread, while others read the environment.
    "NCCL_ALGO": "^NVLS",
}
"""Set before the first communicator of a process is made (docs/clusters.md)."""
WORK_SECONDS = timedelta(days=1)
"""Nothing fails because a healthy member is slow: who hangs is the controller's verdict, and then the groups are interrupted."""
ABORT_SECONDS = 10.0
"""The longest that an abort may take; a process whose communicator does not end is of no use any more."""
NOT_ENDED = 70
"""Exit status then: the worker is started again, and its units are where their buddies have them."""
POLL_SECONDS = 0.005
OWN_DEVICE = torch.device("cuda", 0)
"""A worker sees its own GPU alone."""

Channel = tuple[int, int]
"""(sender, receiver)."""
FirstUse = Callable[[torch.Tensor], Any]
"""(a tensor of one element) -> the work of a first message or collective; all members of the communicator take part."""
Connection = tuple[Any, FirstUse]
"""A communicator that is not connected yet, with its first use."""


class Communicator(Protocol):
    """What is used of the library's process group."""

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        """Enqueue a send on the communicator's stream; the tag is ignored. Returns the library's work."""

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        """Enqueue a receive into `tensors` on the communicator's stream; the tag is ignored. Returns the library's work."""

    def abort(self) -> None:
        """End whatever runs in it on the device; it may block until the library has done so."""

    def get_error(self) -> Any:
        """The library's state: an error that the communicator met while nobody waited for it."""


def quiet(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set what of ENVIRONMENT the user has not set."""
    for name, value in ENVIRONMENT.items():
        environment.setdefault(name, value)


def make_communicator(store: dist.Store, name: str, index: int, size: int, max_ctas: int | None = None) -> Any:
    """A process group of NCCL that is not connected yet. `name` is unique in `store`."""
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = WORK_SECONDS
    options.group_name = name
    options.config.blocking = 0
    if max_ctas is not None:
        options.config.max_ctas = max_ctas
    return dist.ProcessGroupNCCL(dist.PrefixStore(name, store), index, size, options)


def connect(connections: Sequence[Connection], deadline: float, check: Callable[[], None]) -> None:
    """Connect communicators, one after the other, in an order that all members share.

    Args:
        connections: each a communicator of `make_communicator` and its first use, which sets up what the library would otherwise
            set up when a step needs it, in the middle of the step and waiting for the peer on the host.
        deadline: by `time.monotonic`.
        check: called again and again; what it raises ends the connecting.

    Raises:
        RuntimeError: a peer did not come before the deadline, or the library refuses (two members on one device, for instance).
    """
    given_up = threading.Event()
    with blocked():
        for communicator, use in connections:
            failed: list[BaseException] = []
            # It waits for the other members inside the library, which cannot be interrupted: it is left to a thread.
            thread = threading.Thread(target=_connect, args=(communicator, use, failed, given_up), name="connecting", daemon=True)
            thread.start()
            try:
                while thread.is_alive():
                    check()
                    if time.monotonic() > deadline:
                        raise RuntimeError(f"a member did not come to communicator {communicator.options.group_name} in time")
                    thread.join(POLL_SECONDS)
            except BaseException:
                given_up.set()
                raise
            if failed:
                raise RuntimeError(f"NCCL: {failed[0]}") from failed[0]


def _connect(communicator: Any, use: FirstUse, failed: list[BaseException], given_up: threading.Event) -> None:
    """Connect one communicator; where nobody waits for it any more, leave nothing of it on the device."""
    try:
        communicator.eager_connect_single_device(OWN_DEVICE)
        if not given_up.is_set():
            use(torch.zeros(1, device=OWN_DEVICE)).wait()
            _wait_for_first_use(given_up)
        if given_up.is_set():
            communicator.abort()  # an abort before there was a connection has reached nothing
    except BaseException as error:
        failed.append(error)


def _wait_for_first_use(given_up: threading.Event) -> None:
    """Until the device has done it; polled, since nothing interrupts a thread that waits inside the driver."""
    if OWN_DEVICE.type != "cuda":
        return
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(OWN_DEVICE))
    while not done.query() and not given_up.wait(POLL_SECONDS):
        pass


def error_of(communicator: Communicator) -> str:
    """How a communicator has failed, "" where it has not."""
    error = getattr(communicator.get_error(), "name", "SUCCESS")
    return "" if error == "SUCCESS" else error


def abort_all(
    communicators: Sequence[Communicator], seconds: float = ABORT_SECONDS, give_up: Callable[[int], None] = os._exit
) -> threading.Thread:
    """Abort communicators at once, each in a thread: one after the other they may wait for each other.

    Returns:
        A thread that ends when all have ended. Where one does not within `seconds`, or fails to, it calls `give_up(NOT_ENDED)`.
    """
    ended = [threading.Event() for _ in communicators]
    for communicator, event in zip(communicators, ended, strict=True):
        threading.Thread(target=_abort, args=(communicator, event), name="abort", daemon=True).start()

    def watch() -> None:
        deadline = time.monotonic() + seconds
        for event in ended:
            if not event.wait(max(0.0, deadline - time.monotonic())):
                give_up(NOT_ENDED)
                return

    watcher = threading.Thread(target=watch, name="aborts", daemon=True)
    watcher.start()
    return watcher


def _abort(communicator: Communicator, ended: threading.Event) -> None:
    communicator.abort()
    ended.set()


class NcclTransfer:
    """A message under way on the device. Its tensor is kept until the transfer is dropped."""

    def __init__(self, transport: "NcclTransport", work: Any, tensor: torch.Tensor) -> None:
        self._transport, self._work, self._tensor = transport, work, tensor

    def wait(self) -> None:
        """Let the calling thread's stream wait for the message. Raises RuntimeError where the transport has failed by now."""
        with blocked():  # on the host, at most for the launch: what waits is the stream of the calling thread
            self._work.wait()
        self._transport.check()


class NcclTransport:
    """A Transport over NCCL (`transport.transport`), between neighbours on the ring of pipeline ranks.

    Consecutive stages, and the first and the last one, always lie on neighbours.
    """

    def __init__(self, index: int, size: int, make: Callable[[Channel], Communicator], tally: Tally | None = None) -> None:
        """Make the communicators of this member's channels.

        make: the communicator of a channel, with the sender as its member 0 and the receiver as its member 1. tally: counts what
        travels.
        """
        self.index, self.size, self._tally = index, size, tally or Tally(Traffic(), Way.PP)
        self._communicators = {channel: make(channel) for channel in ring_channels(index, size)}
        self._interrupted = threading.Event()
        self._aborting: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def connections(self) -> list[Connection]:
        """What is to be connected, in an order that all members share."""
        return [(communicator, self._first_message(channel)) for channel, communicator in self._communicators.items()]

    def _first_message(self, channel: Channel) -> FirstUse:
        communicator, sends = self._communicators[channel], channel[0] == self.index
        return lambda first: communicator.send([first], 1, 0) if sends else communicator.recv([first], 0, 0)

    def send(self, tensor: torch.Tensor, to: int) -> NcclTransfer:
        """Enqueue a send behind the sends to the same neighbour; the device does it, while the caller goes on."""
        payload = tensor.contiguous()
        self._tally.message(sent=payload.nbytes)
        return NcclTransfer(self, self._channel(self.index, to).send([payload], 1, 0), payload)

    def receive(self, tensor: torch.Tensor, source: int) -> NcclTransfer:
        """Enqueue a receive into `tensor` behind the receives from the same neighbour."""
        self._tally.message(received=tensor.nbytes)
        return NcclTransfer(self, self._channel(source, self.index).recv([tensor], 0, 0), tensor)

    def wait_all(self, transfers: Sequence[NcclTransfer]) -> None:
        """Let the calling thread's stream wait for every one of these messages."""
        for transfer in transfers:
            transfer.wait()

    def check(self) -> None:
        """Raises RuntimeError where the transport was interrupted, or a communicator has met an error."""
        if self._interrupted.is_set():
            raise RuntimeError("the transport was interrupted: what was under way may hold anything")
        failed = {channel: error_of(one) for channel, one in self._communicators.items()}
        if any(failed.values()):
            raise RuntimeError(f"NCCL communicators (sender, receiver) have failed: {failed}")

    def interrupt(self) -> None:
        """Abort all communicators, from another thread and once: an abort may block for as long as the device is stuck."""
        with self._lock:
            self._interrupted.set()
            if self._aborting is None:
                self._aborting = abort_all(list(self._communicators.values()))

    def close(self) -> None:
        """An abort too: a channel may hold a receive that nobody will send."""
        self.interrupt()
        assert self._aborting is not None
        self._aborting.join()
        self._communicators.clear()

    def _channel(self, sender: int, receiver: int) -> Communicator:
        self.check()
        if (sender, receiver) not in self._communicators:
            raise ValueError(f"no channel from {sender} to {receiver}: {list(self._communicators)} are those of {self.index}")
        return self._communicators[sender, receiver]


def ring_channels(index: int, size: int) -> list[Channel]:
    """The channels of a member; neighbours on a ring of `size` members have one in each direction.

    All members sort them alike, so that members who connect one after the other do not wait for each other in a circle.
    """
    neighbours = {(index + 1) % size, (index - 1) % size} - {index}
    return sorted(channel for other in neighbours for channel in ((index, other), (other, index)))
