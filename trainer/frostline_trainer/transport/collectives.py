"""Stores, process groups and the few collectives of a step. Only this file and `transport.nccl` use torch.distributed.

Groups are made directly over a store, never through the global default group. So several worlds can exist at once (the next
generation's is made in the background while the current one trains), and dropping the last reference to a group closes its
sockets (docs/design.md 12.1). Votes and state are always sent over gloo from host memory; pipelines and gradients use NCCL on
CUDA.
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
"""Size limit of a single message in a state transfer."""
STORE_BACKLOG = 2048
"""Listen backlog of a store: a generation's participants connect all at once."""
ANSWER_SECONDS = 2.0
_NONCE = struct.pack("=I", 0x46524F53)
_GREETING, _PING = struct.pack("=BI", 0, 0x3C85F7CE), b"\x0d" + _NONCE
"""c10d's queries VALIDATE and PING (TCPStoreBackend.hpp), the same since torch 2.2; a server repeats the nonce."""


def open_store(host: str = "127.0.0.1") -> tuple[dist.TCPStore, int]:
    """Open a store server, for the generations whose global rank 0 is this process. Returns the store and its port.

    It listens on `host` only, since a store has no authentication; torch's own listener accepts connections on every interface.
    Raises OSError if `host` is no address of this machine.
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
    """A client of another worker's store. Raises RuntimeError if the store does not answer within `timeout`."""
    return dist.TCPStore(host, port, None, is_master=False, timeout=timeout, wait_for_workers=False)


def store_answers(host: str, port: int, seconds: float = ANSWER_SECONDS) -> bool:
    """Whether the store at this address serves a new client, within `seconds` for connecting and `seconds` for its answer.

    The query uses the store's wire protocol directly, since torch's client waits without end for a silent store.
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
    keys: the keys of this member's addresses in `store`. tally: counts the group's bytes.
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
                # gloo itself writes the second key: its rank's addresses, under the number of its device.
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
        """Start to receive into `tensor` from `source`; the tensor is complete after `Message.wait`."""
        landing = self._landing(tensor)
        self.tally.message(received=landing.nbytes)
        return Message(self, self._group.recv([landing], source, tag), landing, tensor)

    def all_reduce_sum(self, tensor: torch.Tensor) -> None:
        """Sum over the members, in place. The library chooses the order of the additions."""
        if self.size == 1:
            return
        landing = self._outgoing(tensor)
        self.tally.summed(landing.nbytes, self.size)
        self.finish([self._group.allreduce([landing])])
        if landing is not tensor:
            tensor.copy_(landing)

    def all_to_all(self, output: torch.Tensor, source: torch.Tensor, output_counts: list[int], source_counts: list[int]) -> None:
        """Send `source_counts[j]` elements of the flat `source` to each member j; receive `output_counts[i]` from each i."""
        staged_out, staged_in = self._landing(output), self._outgoing(source)
        sent, received = sum(source_counts) - source_counts[self.index], sum(output_counts) - output_counts[self.index]
        self.tally.message(sent * source.element_size(), received * output.element_size())
        self.finish([self._group.alltoall_base(staged_out, staged_in, output_counts, source_counts)])
        if staged_out is not output:
            output.copy_(staged_out)

    def all_gather(self, output: torch.Tensor, own: torch.Tensor) -> None:
        """Fill `output` with the members' equal-sized `own` tensors, one after the other."""
        staged_out, staged_in = self._landing(output), self._outgoing(own)
        self.tally.message(*(2 * [own.nbytes * (self.size - 1)]))
        self.finish([self._group._allgather_base(staged_out, staged_in)])
        if staged_out is not output:
            output.copy_(staged_out)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Fill `tensor` of every member with that of `root`, in place. Raises RuntimeError if the group is interrupted."""
        if self.size == 1:
            return
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self.tally.broadcast(tensor.nbytes, self.size, self.index == root)
        self.finish([self._group.broadcast([tensor], options)])

    def barrier(self) -> None:
        """Wait until all members have called this."""
        self.all_reduce_sum(torch.zeros(1))

    def finish(self, works: Sequence[Any], *patience: timedelta) -> None:
        """Wait for collectives or messages of this group. Raises RuntimeError if one fails or is interrupted."""
        if self.backend == "nccl":
            with blocked():  # in the caller's thread, since the wait applies to its stream
                for work in works:
                    work.wait(*patience)
            self.check()
        else:
            gloo.wait_for(works, patience, self._interrupted, self._group)

    def allow(self, timeout: timedelta) -> None:
        """Set the timeout of collectives from now on; connecting had a timeout of its own."""
        if self._group is not None and self.backend == "gloo":
            self._group._set_default_timeout(timeout)
            # Point-to-point messages ignore the group's default timeout: each wait gets its own.
            self._patience = (timeout,)

    def interrupt(self) -> None:
        """Let calls that block in this group end with RuntimeError, here and on its peers. The group cannot be used afterwards.

        Callable from any thread, any number of times.
        """
        group = self._group
        if group is None:
            return
        with self._interrupting:
            first = not self._interrupted.is_set()
            # Before the abort, which ends work without an error: the waiting thread then sees the interruption.
            self._interrupted.set()
            if self.backend == "gloo":
                gloo.cut(self._address, self._peers)
            elif first:
                self._aborting = nccl.abort_all([group])

    def check(self) -> None:
        """Raise RuntimeError if the group was interrupted or NCCL has failed: a wait for the device does not show that."""
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
        """The NCCL communicators that must be connected before the group is used."""
        group = self._group
        return [(group, lambda tensor: group.allreduce([tensor]))] if group is not None and self.backend == "nccl" else []

    def _outgoing(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.cpu() if self.backend == "gloo" and tensor.device.type != "cpu" else tensor.contiguous()

    def _landing(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device="cpu") if self.backend == "gloo" and tensor.device.type != "cpu" else tensor


@dataclass
class Message:
    """A message under way, in either direction, with the memory that it is read from or written to.

    target: of an incoming message for a device tensor, that tensor; `memory` is a host buffer then.
    """

    group: Group
    work: Any
    memory: torch.Tensor
    target: torch.Tensor | None = None

    def wait(self) -> None:
        """Wait until the memory may be used. Raises RuntimeError as `Group.finish`."""
        wait_all([self])


def wait_all(messages: "Sequence[Message]") -> None:
    """Wait for several messages of one group, at the cost of one wait."""
    if messages:
        group = messages[0].group
        group.finish([message.work for message in messages], *group._patience)
        for message in messages:
            if message.target is not None and message.target is not message.memory:
                message.target.copy_(message.memory)


def send_bytes(group: Group, payload: torch.Tensor, to: int, tag: int) -> list[Message]:
    """Send the length of a flat uint8 tensor, then its bytes in chunks of bounded size. Returns messages to wait for."""
    sent = [group.send(torch.tensor([payload.numel()], dtype=torch.int64), to, tag)]
    sent += [group.send(piece, to, tag) for piece in payload.split(CHUNK_BYTES) if piece.numel()]
    return sent


def receive_bytes(group: Group, source: int, tag: int) -> torch.Tensor:
    """Receive a flat uint8 tensor that `send_bytes` sends."""
    length = torch.zeros(1, dtype=torch.int64)
    group.receive(length, source, tag)
    flat = torch.empty(int(length), dtype=torch.uint8)
    for piece in flat.split(CHUNK_BYTES):
        if piece.numel():
            group.receive(piece, source, tag)
    return flat


def broadcast_bytes(group: Group, payload: bytes, root: int) -> bytes:
    """Send the root's bytes to all members. Returns them."""
    if group.size == 1:
        return payload
    length = torch.tensor([len(payload)], dtype=torch.int64)
    group.broadcast(length, root)
    mine = group.index == root
    flat = torch.frombuffer(bytearray(payload), dtype=torch.uint8) if mine else torch.empty(int(length), dtype=torch.uint8)
    group.broadcast(flat, root)
    return flat.numpy().tobytes()


_listening_anew = threading.Lock()
"""Held while a group's listener is made, which is identified as the only new one."""
ATTEMPTS = 20
"""Attempts to make a gloo device: NCCL's threads open listeners without that lock, and such an attempt is repeated."""


def _gloo_device(host: str) -> tuple[Any, gloo.Address]:
    """A gloo device for one group, and its own listening address.

    Raises RuntimeError if other threads of this process, such as NCCL's, opened listeners during each attempt.
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
    """A number for each member's machine, by global rank. Collective. own: the id of this member's machine."""
    numbers = torch.zeros(world.size, dtype=torch.float64)
    numbers[world.index] = int.from_bytes(hashlib.sha256(own.encode()).digest()[:6])
    world.all_reduce_sum(numbers)
    return [int(number) for number in numbers]
