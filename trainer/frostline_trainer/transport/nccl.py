"""NCCL: makes, connects and aborts communicators, and a Transport over them.

NCCL runs the operations of a communicator one after the other, in the order of their calls, on one stream of the device. It
ignores tags, and a send waits for its receive if the message exceeds NCCL's buffers (ProcessGroupNCCL does not distinguish the
two directions of a pair). So each ordered pair (sender, receiver) has a communicator of its own, and the messages of a channel
wait only for each other.

Communicators are connected before a step needs them. This is done in a thread, since the library's call cannot be interrupted,
and never during a step: connecting may wait until the device is idle, which deadlocks if that device waits for a peer that is
connecting too. An abort ends operations without an error and leaves their output undefined, so callers call `check` before they
read results.
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
    # The library's watchdog would end the process of every survivor of a failure; Frostline's controller decides who is gone.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    # It warns that the messages of a communicator wait for each other, in each process: here they shall, one direction each.
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",
    # Seconds after which connecting to a missing peer ends by itself, in its abandoned thread.
    "TORCH_NCCL_NONBLOCKING_TIMEOUT": "60",
    # torch sets this itself under deterministic algorithms, but later, in a thread, while other threads read the environment.
    "NCCL_ALGO": "^NVLS",
}
"""Environment variables that are set before a process makes its first communicator (docs/clusters.md)."""
WORK_SECONDS = timedelta(days=1)
"""Timeout of operations. A slow member must not fail a step: the controller decides who hangs, and interrupts the groups."""
ABORT_SECONDS = 10.0
"""Limit of an abort; a process whose communicator does not end cannot go on."""
NOT_ENDED = 70
"""Exit status after an abort that did not end: the worker is started again; owners and buddies still have its units."""
POLL_SECONDS = 0.005
OWN_DEVICE = torch.device("cuda", 0)
"""A worker sees only its own GPU."""

Channel = tuple[int, int]
"""(sender, receiver)."""
FirstUse = Callable[[torch.Tensor], Any]
"""(a tensor of one element) -> the work of a first message or collective; all members of the communicator take part."""
Connection = tuple[Any, FirstUse]
"""A communicator that is not connected yet, with its first use."""


class Communicator(Protocol):
    """The methods of torch's process group that Frostline uses."""

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> Any:
        """Enqueue a send on the communicator's stream; the tag is ignored. Returns the library's work."""

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> Any:
        """Enqueue a receive into `tensors` on the communicator's stream; the tag is ignored. Returns the library's work."""

    def abort(self) -> None:
        """End all its operations on the device; may block until they have ended."""

    def get_error(self) -> Any:
        """The library's state of the communicator, with an error of an operation that no thread has waited for."""


def quiet(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables of ENVIRONMENT that the user has not set."""
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
        connections: each a communicator of `make_communicator` and its first use. NCCL sets up a connection lazily: without a
            first use here, it would do so in the middle of a step, with the host waiting for the peer.
        deadline: by `time.monotonic`.
        check: called periodically; its exception ends the connecting.

    Raises:
        RuntimeError: a peer did not connect before the deadline, or the library refuses (two members on one device, for example).
    """
    given_up = threading.Event()
    with blocked():
        for communicator, use in connections:
            failed: list[BaseException] = []
            # In a thread, since the library waits for the other members and cannot be interrupted.
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
    """Connect one communicator; if the caller has given up meanwhile, abort it so that it frees the device."""
    try:
        communicator.eager_connect_single_device(OWN_DEVICE)
        if not given_up.is_set():
            use(torch.zeros(1, device=OWN_DEVICE)).wait()
            _wait_for_first_use(given_up)
        if given_up.is_set():
            communicator.abort()  # the caller's abort came before the connection, and had no effect
    except BaseException as error:
        failed.append(error)


def _wait_for_first_use(given_up: threading.Event) -> None:
    """Wait until the device has done the first use; polls, since a wait inside the driver cannot be interrupted."""
    if OWN_DEVICE.type != "cuda":
        return
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(OWN_DEVICE))
    while not done.query() and not given_up.wait(POLL_SECONDS):
        pass


def error_of(communicator: Communicator) -> str:
    """The error of a communicator, "" if it has not failed."""
    error = getattr(communicator.get_error(), "name", "SUCCESS")
    return "" if error == "SUCCESS" else error


def abort_all(
    communicators: Sequence[Communicator], seconds: float = ABORT_SECONDS, give_up: Callable[[int], None] = os._exit
) -> threading.Thread:
    """Abort communicators at the same time, each in a thread, since one abort may wait for another.

    Returns:
        A thread that ends when all have ended. If one does not end within `seconds`, or fails, it calls `give_up(NOT_ENDED)`.
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
        """Let the calling thread's stream wait for the message. Raises RuntimeError if the transport has failed by now."""
        with blocked():  # only the calling thread's stream waits; the host just queues that
            self._work.wait()
        self._transport.check()


class NcclTransport:
    """A Transport over NCCL (`transport.transport`), between neighbours on the ring of pipeline ranks.

    Consecutive stages are always on neighbours of this ring, and so are the first and the last stage.
    """

    def __init__(self, index: int, size: int, make: Callable[[Channel], Communicator], tally: Tally | None = None) -> None:
        """Make the communicators of this member's channels.

        make: makes the communicator of a channel, with the sender as its member 0 and the receiver as its member 1. tally: counts
        the bytes.
        """
        self.index, self.size, self._tally = index, size, tally or Tally(Traffic(), Way.PP)
        self._communicators = {channel: make(channel) for channel in ring_channels(index, size)}
        self._interrupted = threading.Event()
        self._aborting: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def connections(self) -> list[Connection]:
        """The communicators to connect, in an order that all members share."""
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
        """Raise RuntimeError if the transport was interrupted or a communicator has failed."""
        if self._interrupted.is_set():
            raise RuntimeError("the transport was interrupted: what was under way may hold anything")
        failed = {channel: error_of(one) for channel, one in self._communicators.items()}
        if any(failed.values()):
            raise RuntimeError(f"NCCL communicators (sender, receiver) have failed: {failed}")

    def interrupt(self) -> None:
        """Abort all communicators, once, from another thread: an abort may block for as long as the device is stuck."""
        with self._lock:
            self._interrupted.set()
            if self._aborting is None:
                self._aborting = abort_all(list(self._communicators.values()))

    def close(self) -> None:
        """Abort all communicators, since a channel may have a receive whose send never comes."""
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

    All members sort them in the same order, so that connecting one after the other cannot deadlock.
    """
    neighbours = {(index + 1) % size, (index - 1) % size} - {index}
    return sorted(channel for other in neighbours for channel in ((index, other), (other, index)))
