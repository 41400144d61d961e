"""A replica under NVIDIA's resiliency extension: the training function is started again in every surviving process.

RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT python -m tests.benchmarks.peers.nvrx_worker FOLDER REPLICA
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import nvidia_resiliency_ext.inprocess as inprocess
import torch
import torch.distributed as dist

from tests.benchmarks.peers.replica import Replica, log_step

TIMEOUT, OFTEN = timedelta(seconds=5), timedelta(milliseconds=200)


class Training:
    """Training that keeps its weights in the process over a restart; a replica that is a step ahead sends them to the others."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder, self._number = folder, number
        self._replica, self._step = Replica(), 0
        self._replica.gradient(1, 0, 4)
        self._replica.update()  # so that the optimizer's state exists before it is read

    def run(self) -> None:
        """Train until the next fault."""
        dist.init_process_group("gloo", timeout=TIMEOUT)
        self._agree()
        index, replicas = dist.get_rank(), dist.get_world_size()
        while True:
            self._replica.gradient(self._step + 1, index, replicas)
            dist.all_reduce(self._replica.flat)
            self._replica.update()
            self._step += 1
            log_step(self._folder / "steps.jsonl", self._number, self._step, replicas, os.getpid())

    def _agree(self) -> None:
        steps = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, torch.tensor([self._step]))
        newest = max(int(step) for step in steps)
        source = [int(step) for step in steps].index(newest)
        for parameter in self._replica.parameters:
            state = self._replica.optimizer.state[parameter]
            for tensor in (parameter.data, *(value for value in state.values() if torch.is_tensor(value))):
                dist.broadcast(tensor, source)
        self._step = newest


def main(folder: Path, number: int) -> None:
    """Train for ever; the benchmark ends the process."""
    torch.set_num_threads(1)
    training = Training(folder, number)
    wrap = inprocess.Wrapper(
        store_kwargs={"port": int(os.environ["MASTER_PORT"]) + 1, "timeout": timedelta(seconds=30)},
        monitor_thread_interval=OFTEN,
        monitor_process_interval=OFTEN,
        progress_watchdog_interval=OFTEN,
        heartbeat_interval=OFTEN,
        heartbeat_timeout=TIMEOUT,
        last_call_wait=OFTEN,
        monitor_process_logfile=str(folder / "monitor-{rank}.log"),
    )
    wrap(training.run)()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
