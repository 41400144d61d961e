"""A worker under torchrun: data parallel over gloo, a checkpoint every n steps; after a failure all workers start from the last.

torchrun --standalone --nproc-per-node=4 --max-restarts=1000 -m tests.benchmarks.peers.torchrun_worker FOLDER EVERY
"""

import datetime
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from tests.benchmarks.peers.replica import Replica, log_step


def main(folder: Path, every: int) -> None:
    """Train for ever; the benchmark ends the process."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))
    index, replicas = dist.get_rank(), dist.get_world_size()
    replica = Replica()
    step = restore(folder / "checkpoint.safetensors", replica)
    while True:
        step += 1
        replica.gradient(step, index, replicas)
        dist.all_reduce(replica.flat)
        replica.update()
        log_step(folder / "steps.jsonl", index, step, replicas, os.getpid())
        if index == 0 and step % every == 0:
            save(folder / "checkpoint.safetensors", replica, step)


def save(path: Path, replica: Replica, step: int) -> None:
    state = {f"weight/{number}": parameter.detach() for number, parameter in enumerate(replica.parameters)}
    for number, parameter in enumerate(replica.parameters):
        for name, value in replica.optimizer.state[parameter].items():
            state[f"{name}/{number}"] = value
    save_file({**state, "at": torch.tensor(step)}, path.with_suffix(".partial"))
    os.replace(path.with_suffix(".partial"), path)


def restore(path: Path, replica: Replica) -> int:
    """Load the checkpoint if there is one. Returns its step; 0 if there is none."""
    if not path.exists():
        return 0
    state = load_file(path)
    with torch.no_grad():
        for number, parameter in enumerate(replica.parameters):
            parameter.copy_(state[f"weight/{number}"])
            names = ("exp_avg", "exp_avg_sq", "step")
            replica.optimizer.state[parameter] = {name: state[f"{name}/{number}"].clone() for name in names}
    return int(state["at"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
