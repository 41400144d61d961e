"""Stores, process groups and the few collectives that a step needs; with `transport.nccl` the importers of torch.distributed.

Groups are made directly over a store, never through the global default group. So several worlds can exist at once (the next
generation's is made in the background while the present one trains), and dropping the last reference to a group closes its
sockets (docs/design.md 12.1). Votes and state always travel over gloo in host memory; pipelines and gradients use NCCL
on CUDA.
"""

import hashlib
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from frostline_contract.communicators import GROUP_CTAS
from frostline_contract.usage import Way
from frostline_trainer.transport import gloo, nccl
from frostline_trainer.transport.traffic import Tally, Traffic
from frostline_trainer.transport.waiting import blocked

DEFAULT_TIMEOUT = timedelta(seconds=120)
CHUNK_BYTES = 32 * 1024 * 1024
"""Largest single message of a state move."""
STORE_BACKLOG = 2048
"""Connections that may wait to be accepted: a generation's participants come all at once."""
ANSWER_SECONDS = 2.0
_NONCE = struct.pack("=I", 0x46524F53)
_GREETING, _PING = struct.pack("=BI", 0, 0x3C85F7CE), b"\x0d" + _NONCE
"""c10d's queries VALIDATE and PING (TCPStoreBackend.hpp), the same since torch 2.2; a server repeats the nonce."""


def open_store(host: str = "127.0.0.1") -> tuple[dist.TCPStore, int]:
    """A store server of this process, for the generations whose global rank 0 it will be. Returns it and its port.

    It listens on `host` alone: the library's own listener takes connections on every interface, and a store asks nobody for a
    token. Raises OSError where `host` is no address of this machine.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
    with _listening_anew, socket.socket(family, kind, protocol) as listener:
        listener.bind(address)
        listener.listen(STORE_BACKLOG)
        port = listener.getsockname()[1]
        store = dist.TCPStore(host, port, None, is_master=True, timeout=DEFAULT_TIMEOUT, wait_for_workers=False,
                              master_listen_fd=listener.detach())  # fmt: skip
    return store, port


def connect_store(host: str, port: int, timeout: timedelta = DEFAULT_TIMEOUT) -> dist.Store:
    """A client of another worker's store. Raises RuntimeError where nobody answers within `timeout`."""
    return dist.TCPStore(host, port, None, is_master=False, timeout=timeout, wait_for_workers=False)


def store_answers(host: str, port: int, seconds: float = ANSWER_SECONDS) -> bool:
    """Whether the store there serves a new client, within `seconds` for each of connecting and answering.

    It is asked by its own protocol: the library's client waits without end for a store that is silent.
    """
    try:
        with socket.create_connection((host, port), seconds) as connection:
            connection.sendall(_GREETING + _PING)
            return connection.recv(len(_NONCE), socket.MSG_WAITALL) == _NONCE
    except OSError:
        return False


class Group:
    """One process group; a group of one member needs no sockets and every collective is the identity.

    index: own place in it; size: members. Point-to-point messages between two members are matched by tag.
    keys: what this member has put into `store` to be found by the others. tally: counts what travels.
    """

    def __init__(self, store: dist.Store | None, name: str, index: int, size: int, backend: str = "gloo",
                 timeout: timedelta = DEFAULT_TIMEOUT, host: str = "127.0.0.1", tally: Tally | None = None) -> None:  # fmt: skip
        self.index, self.size, self.backend = index, size, backend
        self.tally = tally or Tally(Traffic(), Way.OTHER)
        self._group: Any = None
        self._address: gloo.Address = ("", 0)
        self._peers: set[gloo.Address] = set()
        self._patience: tuple[timedelta, ...] = ()
        self._interrupted = threading.Event()
        self._interrupting = threading.Lock()
        self._aborting: threading.Thread | None = None
        self.keys: list[str] = []
        if size > 1:
            assert store is not None
            prefixed = dist.PrefixStore(name, store)
            if backend == "nccl":
                self._group = nccl.make_communicator(store, name, index, size, GROUP_CTAS)
            else:
                device, self._address = _gloo_device(host)
                prefixed.set(f"address{index}", f"{self._address[0]} {self._address[1]}")
                self._group = _gloo(prefixed, index, size, timeout, device)
                self._peers = {_read_address(prefixed.get(f"address{peer}")) for peer in range(size) if peer != index}
                # The second is gloo's own: its rank's addresses, under the number of its device.
                self.keys = [f"{name}/address{index}", f"{name}/0/{index}"]

    def send(self, tensor: torch.Tensor, to: int, tag: int) -> "Message":
        """Start sending; the tensor is kept until `Message.wait`."""
        payload = self._outgoing(tensor)
        self.tally.message(sent=payload.nbytes)
        return Message(self, self._group.send([payload], to, tag), payload)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> None:
        """Fill `tensor` from `source`, blocking."""
        self.expect(tensor, source, tag).wait()

    def expect(self, tensor: torch.Tensor, source: int, tag: int) -> "Message":
        """`tensor` fills from `source` from now on; it is whole after `Message.wait`."""
        landing = self._landing(tensor)
        self.tally.message(received=landing.nbytes)
        return Message(self, self._group.recv([landing], source, tag), landing, tensor)

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        """Sum over the members, in place. The order of the sum is the library's."""
        if self.size == 1:
            return
        landing = self._outgoing(tensor)
        self.tally.summed(landing.nbytes, self.size)
        self.finish([self._group.allreduce([landing])])
        if landing is not tensor:
            tensor.copy_(landing)

    def all_to_all(self, output: torch.Tensor, source: torch.Tensor, output_counts: list[int], source_counts: list[int]) -> None:
        """Member j receives the j-th run of `source_counts[j]` elements of every member's flat `source`."""
        staged_out, staged_in = self._landing(output), self._outgoing(source)
        sent, received = sum(source_counts) - source_counts[self.index], sum(output_counts) - output_counts[self.index]
        self.tally.message(sent * source.element_size(), received * output.element_size())
        self.finish([self._group.alltoall_base(staged_out, staged_in, output_counts, source_counts)])
        if staged_out is not output:
            output.copy_(staged_out)

    def all_gather(self, output: torch.Tensor, own: torch.Tensor) -> None:
        """`output` becomes the members' equal-sized `own` tensors, one after the other."""
        staged_out, staged_in = self._landing(output), self._outgoing(own)
        self.tally.message(*(2 * [own.nbytes * (self.size - 1)]))
        self.finish([self._group._allgather_base(staged_out, staged_in)])
        if staged_out is not output:
            output.copy_(staged_out)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Fill `tensor` of every member with that of `root`, in place. Raises RuntimeError where the group is interrupted."""
        if self.size == 1:
            return
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self.tally.broadcast(tensor.nbytes, self.size, self.index == root)
        self.finish([self._group.broadcast([tensor], options)])

    def barrier(self) -> None:
        """All members have come here."""
        self.all_reduce_sum(torch.zeros(1))

    def finish(self, works: Sequence[Any], *patience: timedelta) -> None:
        """Wait for collectives or messages of this group. Raises RuntimeError where one fails or is interrupted."""
        if self.backend == "nccl":
            with blocked():  # in the caller's thread: what waits is its stream
                for work in works:
                    work.wait(*patience)
            self.check()
        else:
            gloo.wait_for(works, patience, self._interrupted)

    def allow(self, timeout: timedelta) -> None:
        """Let each collective take so long from now on, however long the connecting was allowed to take."""
        if self._group is not None and self.backend == "gloo":
            self._group._set_default_timeout(timeout)
            # Messages between two members do not follow the default: they are told each time.
            self._patience = (timeout,)

    def interrupt(self) -> None:
        """Make whatever blocks in this group end with RuntimeError, here and on its peers. The group is of no use afterwards.

        Callable from any thread, any number of times.
        """
        group = self._group
        if group is None:
            return
        with self._interrupting:
            first = not self._interrupted.is_set()
            # Before the abort: it ends work without an error, and whoever sees that end must find out why.
            self._interrupted.set()
            if self.backend == "gloo":
                gloo.cut(self._address, self._peers)
            elif first:
                self._aborting = nccl.abort_all([group])

    def check(self) -> None:
        """Raise RuntimeError where the group was interrupted or NCCL has failed, which no wait for a device says."""
        if self._interrupted.is_set():
            raise RuntimeError("the group was interrupted: what was under way may hold anything")
        if self._group is not None and self.backend == "nccl" and (error := nccl.error_of(self._group)):
            raise RuntimeError(f"an NCCL communicator of this generation has failed: {error}")

    def close(self) -> None:
        """Drop the group; gloo closes its sockets with the last reference."""
        if self._group is not None and self.backend == "nccl":
            self.interrupt()
            if self._aborting is not None:
                self._aborting.join()
        self._group = None

    @property
    def connections(self) -> list[nccl.Connection]:
        """What NCCL has to connect before the group is used."""
        group = self._group
        return [(group, lambda tensor: group.allreduce([tensor]))] if group is not None and self.backend == "nccl" else []

    def _outgoing(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu() if self.backend == "gloo" and tensor.device.type != "cpu" else tensor.contiguous()

    def _landing(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device="cpu") if self.backend == "gloo" and tensor.device.type != "cpu" else tensor


@dataclass
class Message:
    """A message under way, in either direction, with the memory that it is read from or written to.

    target: of an incoming message, the tensor that gets its contents; another one than `memory` where that is in the host.
    """

    group: Group
    work: Any
    memory: torch.Tensor
    target: torch.Tensor | None = None

    def wait(self) -> None:
        """Until the memory may be used. Raises RuntimeError as `Group.finish`."""
        wait_all([self])


def wait_all(messages: "Sequence[Message]") -> None:
    """`Message.wait` of each, at the price of one; all are of one group."""
    if messages:
        group = messages[0].group
        group.finish([message.work for message in messages], *group._patience)
        for message in messages:
            if message.target is not None and message.target is not message.memory:
                message.target.copy_(message.memory)


def send_bytes(group: Group, payload: torch.Tensor, to: int, tag: int) -> list[Message]:
    """Send the length of a flat uint8 tensor, then its bytes in chunks of bounded size. The caller waits for what is returned."""
    sent = [group.send(torch.tensor([payload.numel()], dtype=torch.int64), to, tag)]
    sent += [group.send(piece, to, tag) for piece in payload.split(CHUNK_BYTES) if piece.numel()]
    return sent


def receive_bytes(group: Group, source: int, tag: int) -> torch.Tensor:
    """The counterpart of `send_bytes`: a tensor of its own."""
    length = torch.zeros(1, dtype=torch.int64)
    group.receive(length, source, tag)
    flat = torch.empty(int(length), dtype=torch.uint8)
    for piece in flat.split(CHUNK_BYTES):
        if piece.numel():
            group.receive(piece, source, tag)
    return flat


def broadcast_bytes(group: Group, payload: bytes, root: int) -> bytes:
    """Everybody gets the root's bytes."""
    if group.size == 1:
        return payload
    length = torch.tensor([len(payload)], dtype=torch.int64)
    group.broadcast(length, root)
    mine = group.index == root
    flat = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if mine else torch.empty(int(length), dtype=torch.uint8)
    group.broadcast(flat, root)
    return flat.numpy().tobytes()


_listening_anew = threading.Lock()
"""Held while a listener is made: a group's own is known by being the only new one."""
ATTEMPTS = 20
"""NCCL's threads open listeners without that lock; a device that is made beside one is dropped."""


def _gloo_device(host: str) -> tuple[Any, gloo.Address]:
    """A device for one group, and the address at which it alone listens.

    Raises RuntimeError where others of this process, NCCL's threads for instance, opened listeners beside each attempt.
    """
    with _listening_anew:
        for _ in range(ATTEMPTS):
            before = gloo.listening()
            device = dist.ProcessGroupGloo.create_device(hostname=host)
            found = gloo.listening() - before
            if len(found) == 1:
                return device, found.pop()
    raise RuntimeError(f"{ATTEMPTS} times in a row this process opened other listeners beside gloo's, at last {sorted(found)}")


def _read_address(text: bytes) -> gloo.Address:
    host, _, port = text.decode().partition(" ")
    return host, int(port)


def _gloo(store: dist.Store, index: int, size: int, timeout: timedelta, device: Any) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._devices = [device]
    options._timeout = timeout
    options._threads = 1
    return dist.ProcessGroupGloo(store, index, size, options)


def machines_of(world: Group, own: str) -> list[int]:
    """A number for each member's machine, by global rank. Collective. own: what this member's machine calls itself."""
    numbers = torch.zeros(world.size, dtype=torch.float64)
    numbers[world.index] = int.from_bytes(hashlib.sha256(own.encode()).digest()[:6])
    world.all_reduce_sum(numbers)
    return [int(number) for number in numbers]
