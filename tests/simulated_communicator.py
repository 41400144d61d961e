"""A communicator of the simulated NCCL: the trainer's part of torch's process groups, over `tests.simulated_nccl.Network`."""

import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from frostline_trainer.transport import nccl
from tests.simulated_operations import Member, Operation

if TYPE_CHECKING:
    from tests.simulated_nccl import Network


@dataclass
class SimulatedWork:
    network: "Network"
    operation: Operation

    def wait(self, *timeout: Any) -> bool:
        """Let the stream of the calling thread wait; the host does not wait."""
        member = self.network.current
        if member is not None and member.ahead is not None:
            member.ahead.device.wait_for(self.operation)
        elif member is not None and not self.operation.done:
            member.waited.append(self.operation)
        return True

    def is_completed(self) -> bool:
        return self.operation.done


class SimulatedNccl:
    """The methods of ProcessGroupNCCL that the trainer uses."""

    def __init__(self, network: "Network", name: str, index: int, size: int, member: Member) -> None:
        self._network, self._name, self._index, self._size = network, name, index, size
        self._device = member.device
        self._connected = False
        self._seconds = nccl.WORK_SECONDS.total_seconds()
        self.options = SimpleNamespace(group_name=name)

    def eager_connect_single_device(self, device: torch.device) -> None:
        self._network.connect(self._name, self._index, self._device)
        self._connected = True

    def get_error(self) -> Any:
        return SimpleNamespace(name="SUCCESS")

    def abort(self) -> None:
        self._network.abort(self._name, self._index)

    def send(self, tensors: list[torch.Tensor], to: int, tag: int) -> SimulatedWork:
        return self._post("send", to, tensors, [])

    def recv(self, tensors: list[torch.Tensor], source: int, tag: int) -> SimulatedWork:
        return self._post("recv", source, [], tensors)

    def allreduce(self, tensors: list[torch.Tensor]) -> SimulatedWork:
        return self._post("allreduce", -1, [tensors[0].clone()], tensors)

    def alltoall_base(
        self, output: torch.Tensor, source: torch.Tensor, output_counts: list[int], counts: list[int]
    ) -> SimulatedWork:
        return self._post("alltoall", -1, [source], [output], tuple(counts))

    def _allgather_base(self, output: torch.Tensor, own: torch.Tensor) -> SimulatedWork:
        return self._post("allgather", -1, [own], [output])

    def _post(
        self, kind: str, peer: int, reads: list[torch.Tensor], writes: list[torch.Tensor], counts: tuple[int, ...] = ()
    ) -> SimulatedWork:
        member = self._network.current
        if member is not None and member.ahead is None and member.waited:
            self._network.await_device(member)  # the communicator's stream starts after all work given to the device
        whole = self._connected or kind not in ("send", "recv")
        lane = (self._name, "all" if whole else (min(self._index, peer), max(self._index, peer)))
        owner = member.index if member is not None else -1
        operation = Operation(
            kind, owner, self._index, lane, peer, reads, writes, counts, deadline=time.monotonic() + self._seconds
        )
        return SimulatedWork(self._network, self._network.post(operation, member))
