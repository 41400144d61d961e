"""A replica under torchft: its manager reforms the group at each quorum; a step that fails is committed by no replica.

python -m tests.benchmarks.peers.torchft_worker FOLDER REPLICA LIGHTHOUSE
"""

import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchft import Manager, ProcessGroupGloo

from tests.benchmarks.peers.replica import Replica, log_step

TIMEOUT = timedelta(seconds=5)


def main(folder: Path, number: int, lighthouse: str) -> None:
    """Train for ever; the benchmark ends the process."""
    replica = Replica()
    replica.gradient(1, 0, 4)
    replica.update()  # so that the optimizer's state exists before it is read

    def state() -> dict[str, Any]:
        return {"model": replica.model.state_dict(), "optimizer": replica.optimizer.state_dict()}

    def load(values: dict[str, Any]) -> None:
        replica.model.load_state_dict(values["model"])
        replica.optimizer.load_state_dict(values["optimizer"])

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=1,
        load_state_dict=load,
        state_dict=state,
        use_async_quorum=False,
        timeout=TIMEOUT,
        quorum_timeout=timedelta(seconds=30),
        connect_timeout=timedelta(seconds=10),
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=f"replica-{number}",
        hostname="127.0.0.1",
    )
    while True:
        manager.start_quorum()
        members = manager.num_participants()
        place = manager.participating_rank()
        replica.gradient(manager.current_step() + 1, place if place is not None else 0, members)
        # torchft averages, but the parts of one batch must be summed.
        manager.allreduce(replica.flat).wait()
        replica.flat.mul_(members)
        if manager.should_commit():
            replica.update()
            log_step(folder / "steps.jsonl", number, manager.current_step(), members, os.getpid())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
