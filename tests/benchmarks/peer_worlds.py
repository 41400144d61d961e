"""Worlds of other systems: the same four replicas under torchrun, DLRover, torchft and NVIDIA's resiliency extension."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.benchmarks.worlds import REPLICAS, Commit, World


class Torchrun(World):
    """torchrun: all processes start again from the last checkpoint, which is written every `every` steps."""

    name = "torchrun"

    def __init__(self, every: int = 10) -> None:
        super().__init__()
        self._every = every

    def _launch(self) -> None:
        # Without the variable a restarted env:// rendezvous waits for a store that no longer exists.
        self._run(str(Path(sys.executable).with_name("torchrun")), "--standalone", f"--nproc-per-node={REPLICAS}",
                  "--max-restarts=1000", "--monitor-interval=0.1", "-m", "tests.benchmarks.peers.torchrun_worker",
                  str(self.folder), str(self._every), TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")  # fmt: skip

    def commits(self) -> list[Commit]:
        """Return the commits of replica 0. Steps that are repeated after a kill, from the checkpoint on, count as commits too."""
        lines = [line for line in self._lines("steps.jsonl") if line["replica"] == 0]
        return [Commit(line["step"], line["time"], line["members"], str(line["process_id"])) for line in lines]

    def victim(self) -> int:
        return [line["process_id"] for line in self._lines("steps.jsonl") if line["replica"] == 2][-1]


class Dlrover(Torchrun):
    """DLRover's agent instead of torchrun's: it asks a master how to treat a failed worker group, and starts the group again."""

    name = "dlrover"

    def _launch(self) -> None:
        # DLRover's own master, `--standalone`, does not start under torch 2.13: SubprocessHandler needs one more argument.
        port = free_port()
        self._run(sys.executable, "-m", "dlrover.python.master.main", "--port", port, "--node_num", "1", "--job_name", "bench",
                  "--platform", "local")  # fmt: skip
        self.wait(lambda: _listens(int(port)), "master")
        self._run(str(Path(sys.executable).with_name("dlrover-run")), "--nnodes=1", f"--nproc-per-node={REPLICAS}",
                  "--max-restarts=1000", "--monitor-interval=0.1", "-m", "tests.benchmarks.peers.torchrun_worker",
                  str(self.folder), str(self._every), DLROVER_MASTER_ADDR=f"127.0.0.1:{port}", NODE_RANK="0", NODE_NUM="1",
                  TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")  # fmt: skip


class Nvrx(World):
    """In-process restart: the training function begins again in the surviving processes. A dead process is not replaced."""

    name = "nvidia-resiliency-ext"

    def _launch(self) -> None:
        module, size, port = "tests.benchmarks.peers.nvrx_worker", str(REPLICAS), free_port()
        self._replicas = [
            self._run(sys.executable, "-m", module, str(self.folder), str(number), RANK=str(number), LOCAL_RANK=str(number),
                      WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            for number in range(REPLICAS)
        ]  # fmt: skip

    def commits(self) -> list[Commit]:
        return commits_of_survivors(self._lines("steps.jsonl"))

    def victim(self) -> int:
        return self._replicas[2].pid


class Torchft(World):
    """torchft: survivors form a new group at the next quorum; this class starts the killed replica again."""

    name = "torchft"

    def _launch(self) -> None:
        address = self.folder / "lighthouse"
        self._run(sys.executable, "-m", "tests.benchmarks.peers.lighthouse", str(address))
        self._address = self.wait(lambda: address.exists() and address.read_text(), "lighthouse")
        self._replicas = [self._replica(number) for number in range(REPLICAS)]

    def _replica(self, number: int) -> subprocess.Popen[bytes]:
        module = "tests.benchmarks.peers.torchft_worker"
        return self._run(sys.executable, "-m", module, str(self.folder), str(number), self._address)

    def commits(self) -> list[Commit]:
        return commits_of_survivors(self._lines("steps.jsonl"))

    def victim(self) -> int:
        return self._replicas[2].pid

    def kill(self, seed: int) -> float:
        killed = super().kill(seed)
        self._replicas[2].wait()
        return killed

    def revive(self) -> None:
        self._replicas[2] = self._replica(2)


def commits_of_survivors(reported: list[dict[str, Any]]) -> list[Commit]:
    """Return the steps that all their members have committed. The process of replica 2, the killed one, names the world.

    A peer that waits for the newcomer goes straight from four replicas to four: only replica 2's process differs.
    """
    by_step: dict[int, dict[int, dict[str, Any]]] = {}
    for line in reported:
        by_step.setdefault(line["step"], {})[line["replica"]] = line
    found = []
    for step, lines in sorted(by_step.items()):
        members = max(line["members"] for line in lines.values())
        if {0, 1, 3} <= lines.keys() and len(lines) >= members:
            process_id = lines[2]["process_id"] if 2 in lines else None
            found.append(Commit(step, max(line["time"] for line in lines.values()), members, f"{members} with {process_id}"))
    return found


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0
