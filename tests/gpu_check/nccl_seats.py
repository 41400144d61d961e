"""The seats of the acts: two processes over real NCCL, or two threads over the simulated one.

A process: `python -m tests.gpu_check.nccl_seats ACT INDEX PORT LIBRARY`; its last line of output is the result of the act.
"""

import json
import os
import signal
import sys
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from frostline_trainer.transport import nccl
from frostline_trainer.transport.collectives import connect_store
from tests.gpu_check import nccl_acts
from tests.simulated_nccl import Network

ANSWER = "answer: "
POLL_SECONDS = 0.001
CTAS = 4
"""Thread blocks of a channel's kernels, as the trainer sets them."""
SIMULATED_SECONDS = 2.0
"""How long is waited for messages that may be stuck; between threads, a message that is not stuck takes far less."""


def _connection(communicator: Any, index: int, messages: bool) -> nccl.Connection:
    """A communicator with its first use: a sum, after a message each way where `messages` are to follow, as the trainer's
    channels have."""
    peer = 1 - index

    def use(tensor: torch.Tensor) -> Any:
        if messages:
            both = (communicator.send, communicator.recv) if index == 0 else (communicator.recv, communicator.send)
            for message in both:
                message([tensor], peer, 0).wait()
        return communicator.allreduce([tensor])

    return communicator, use


class ProcessSeat:
    """A member in a separate process.

    library: "nccl", or "gloo" to rehearse the surroundings: processes, deaths, answers.
    """

    def __init__(self, index: int, port: int, library: str) -> None:
        self.index, self.real = index, library == "nccl"
        self._store = connect_store("127.0.0.1", port)
        self.device = torch.device("cuda", 0) if self.real else torch.device("cpu")
        nccl.OWN_DEVICE = self.device

    def make(self, name: str, seconds: float | None = None) -> Any:
        if not self.real:
            return _Gloo(dist.PrefixStore(name, self._store), name, self.index)
        if seconds is None:
            return nccl.make_communicator(self._store, name, self.index, 2, CTAS)
        before, nccl.WORK_SECONDS = nccl.WORK_SECONDS, timedelta(seconds=seconds)
        try:
            return nccl.make_communicator(self._store, name, self.index, 2, CTAS)
        finally:
            nccl.WORK_SECONDS = before

    def join(self, *communicators: Any, seconds: float = 60.0, messages: bool = True) -> None:
        connections = [_connection(one, self.index, messages) for one in communicators]
        nccl.connect(connections, time.monotonic() + seconds, lambda: None)

    def finished(self, seconds: float) -> bool:
        if not self.real:
            return True
        end, deadline = torch.cuda.Event(), time.monotonic() + seconds
        end.record()
        while not end.query():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def meet(self, name: str) -> None:
        come = self._store.add(f"meet {name}", 1)
        while come < 2:
            time.sleep(0.01)
            come = self._store.add(f"meet {name}", 0)

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def free_mib(self) -> float:
        return torch.cuda.mem_get_info(self.device)[0] / 2**20 if self.real else 0.0


class _Gloo:
    """gloo under the method names of ProcessGroupNCCL that the acts use."""

    def __init__(self, store: dist.Store, name: str, index: int) -> None:
        self._store, self._index, self._group = store, index, None
        self.options = SimpleNamespace(group_name=name)

    def eager_connect_single_device(self, device: torch.device) -> None:
        self._group = dist.ProcessGroupGloo(self._store, self._index, 2, timedelta(seconds=20))

    def abort(self) -> None:
        self._group = None

    def get_error(self) -> str:
        return "SUCCESS"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


class ThreadSeat:
    """A member that is a thread, over simulated NCCL."""

    real = False
    device = torch.device("cpu")

    def __init__(self, network: Network, index: int, member: Any) -> None:
        self.index, self._network, self._member = index, network, member

    def make(self, name: str, seconds: float | None = None) -> Any:
        return self._network.make(None, name, self.index, 2)

    def join(self, *communicators: Any, seconds: float = 60.0, messages: bool = True) -> None:
        connections = [_connection(one, self.index, messages) for one in communicators]
        nccl.connect(connections, time.monotonic() + seconds, lambda: None)

    def finished(self, seconds: float) -> bool:
        expected = seconds >= nccl_acts.DONE_SECONDS
        deadline = time.monotonic() + (seconds if expected else min(seconds, SIMULATED_SECONDS))
        while not all(operation.done for operation in self._member.waited):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def meet(self, name: str) -> None:
        self._network.meet(name, 2)

    def die(self) -> None:
        self._network.kill(self._member.index)

    def free_mib(self) -> float:
        return 0.0


def main(act: str, index: str, port: str, library: str) -> None:
    """Run a process's part in an act."""
    seat = ProcessSeat(int(index), int(port), library)
    reply = getattr(nccl_acts, act)(seat)
    print(ANSWER + json.dumps(reply), flush=True)
    # Wait until both members are done, since a member that leaves is not a silent one. The other one may be dead, or hang.
    deadline = time.monotonic() + 5.0
    come = seat._store.add("leaving", 1)
    while come < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
        come = seat._store.add("leaving", 0)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
