"""Trainer pods that start quickly: each test node has one preload process for all its pods, as a machine has its page cache.

One more belongs to no node: it is for the runs on one worker with which a release is compared.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.cluster import processes
from tests.cluster.cluster import ROOT, Cluster

READY_SECONDS = 120.0
ALONE = "alone"


class WarmNodes:
    """The preload processes from which pods of the cluster's nodes fork their workers, until `stop`.

    They die and freeze with their node.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._folder = tempfile.TemporaryDirectory(prefix="fl-warm-")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {**os.environ, "OMP_NUM_THREADS": "1", processes.VARIABLE: f"{cluster.mark}/warm"}
        for name in (*cluster.nodes, ALONE):
            self._start(name)
        self._await([*cluster.nodes, ALONE])

    @property
    def alone(self) -> str:
        """The socket of the preload process that belongs to no node."""
        return str(self._socket(ALONE))

    def heal(self) -> None:
        """Restart the processes that ended with their node."""
        ended = [name for name, process in self._processes.items() if process.poll() is not None]
        for name in ended:
            self._start(name)
        self._await(ended)

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._folder.cleanup()

    def _start(self, name: str) -> None:
        socket = self._socket(name)
        socket.unlink(missing_ok=True)
        command = [sys.executable, "-m", "frostline_trainer.process.preload", str(socket)]
        self._processes[name] = subprocess.Popen(command, cwd=ROOT, env=self._environment)
        if name in self._cluster.nodes:
            options = self._cluster.nodes[name].options
            options.variables["FROSTLINE_PRELOAD"] = str(socket)
            options.companions[:] = [self._processes[name].pid]

    def _await(self, names: list[str]) -> None:
        end = time.monotonic() + READY_SECONDS
        while not all(self._socket(name).exists() for name in names):
            assert time.monotonic() < end, f"no preload process within {READY_SECONDS:.0f} s"
            time.sleep(0.1)

    def _socket(self, name: str) -> Path:
        return Path(self._folder.name) / f"{name}.sock"
