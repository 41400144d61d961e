"""Four data-parallel replicas of the digits model as processes that a benchmark may kill: ours; other systems are in peer_worlds.

`commits` lists which replicas committed which step and when; `kill` ends one replica's process as a preemption would.
"""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.benchmarks.subjects import DIGITS_JOB

REPLICAS = 4
ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 120.0
ENDLESS_STEPS = 1_000_000


@dataclass(frozen=True)
class Commit:
    """A committed step. time: Unix seconds. members: number of replicas that computed the step. world: name of these replicas."""

    step: int
    time: float
    members: int
    world: str


class World(ABC):
    """One system that trains. `start` returns when training has started; `end` leaves no process."""

    name = ""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bench-"))
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        self._launch()
        self.await_full()

    def await_full(self, after: float = 0.0) -> None:
        """Wait until all four replicas have trained for ten steps since `after`."""
        self.wait(lambda: [one for one in self.commits() if one.members == REPLICAS and one.time > after][10:], "all four")

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name}: no {what} within {PATIENCE_SECONDS:.0f} s, see {self.folder}")
            time.sleep(0.02)
        return found

    def kill(self, seed: int) -> float:
        """Send SIGKILL to one replica's process at a random moment of a step. Returns the Unix time."""
        process_id = self.victim()
        time.sleep(random.Random(seed).uniform(0.0, 0.2))
        now = time.time()
        os.kill(process_id, signal.SIGKILL)
        return now

    def revive(self) -> None:  # noqa: B027  most systems revive it themselves
        """Bring the killed replica back."""

    def next_commit(self, killed: float) -> Commit:
        """Return the first step after the kill that was committed by another world than the one that the kill hit."""
        return self.wait(lambda: self._recovered(killed), "commit after the kill")

    def _recovered(self, killed: float) -> Commit | None:
        commits = self.commits()
        hit = {one.world for one in commits if one.time <= killed}
        return next((one for one in commits if one.time > killed and one.world not in hit), None)

    def end(self) -> None:
        for process in self._processes:
            for child in [*_children(process.pid), process.pid]:
                _kill(child)
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, *argv: str, **more_env: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "output.log", "ab") as log:
            process = subprocess.Popen(argv, env={**self._env, **more_env}, cwd=ROOT, stdout=log, stderr=log,
                                       stdin=subprocess.DEVNULL, start_new_session=True)  # fmt: skip
        self._processes.append(process)
        return process

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]

    @abstractmethod
    def _launch(self) -> None: ...

    @abstractmethod
    def commits(self) -> list[Commit]:
        """Return the commits of all steps so far, oldest first."""

    @abstractmethod
    def victim(self) -> int:
        """Return the process id of the replica to kill; never the coordinator's own."""


class Ours(World):
    """`frostline run` of the digits job with a pinned shape.

    Args:
        cold: whether each pod has a preload process of its own, as on a cluster; a killed replica loses it with its pod.
        spares: warm workers beside the four; training counts as started when they are there.
        changes: further fields of the job.
    """

    name = "frostline"

    def __init__(self, pp_degree: int = 1, dp_degree: int = 4, cold: bool = False, spares: int = 0, **changes: Any) -> None:
        super().__init__()
        self._cold, self._spares = cold, spares
        self._env |= {"FROSTLINE_PRELOAD": "pods"} if cold else {}
        self._pinned, self._changes = {"pp_degree": pp_degree, "dp_degree": dp_degree}, changes

    def _launch(self) -> None:
        job = yaml.safe_load(DIGITS_JOB.read_text())
        job["training"].pop("epochs", None)
        job["training"].update(steps=ENDLESS_STEPS, device="cpu")
        job["freeze"] = {**job.get("freeze", {}), "interval_steps": ENDLESS_STEPS // 2}
        job["evaluation"] = {"every_intervals": 0, "test_at_end": False}
        job["placement"] = {"workers": REPLICAS, "spare_workers": self._spares, "planner": "optimal", **self._pinned}
        job["controller"] = {"heartbeat_seconds": 0.2}
        for section, fields in self._changes.items():
            job[section] = {**job.get(section, {}), **fields} if isinstance(fields, dict) else fields
        (self.folder / "job.yaml").write_text(yaml.safe_dump(job))
        self._run(sys.executable, "-m", "frostline_controller.cli", "run", "-f", str(self.folder / "job.yaml"),
                  "--out", str(self.run_dir), "--quiet")  # fmt: skip

    def start(self) -> None:
        super().start()
        if self._spares:
            self.wait(lambda: len(self._workers()) == REPLICAS + self._spares, "spare workers")

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def commits(self) -> list[Commit]:
        lines = [line for line in self._lines("run/metrics.jsonl") if "starts_at_step" not in line]
        return [
            Commit(line["step"], line["time_seconds"], math.prod(line["degrees"].values()), line["generation"]) for line in lines
        ]

    def kill(self, seed: int) -> float:
        """Kill the worker; in a cold world the whole pod: the agent, its preload process and the worker."""
        if not self._cold:
            return super().kill(seed)
        preload = psutil.Process(self.victim()).parent()
        assert preload is not None
        agent = preload.parent()
        assert agent is not None
        now = time.time()
        for process in (agent, preload, *preload.children()):
            _kill(process.pid)
        return now

    def victim(self) -> int:
        """Return the process id of a member's worker, not always the same one."""
        members = [worker for worker in self._workers() if worker["global_rank"] is not None]
        return random.Random(len(self.commits())).choice(members)["process_id"]

    def _workers(self) -> list[dict[str, Any]]:
        status = subprocess.run(
            [sys.executable, "-m", "frostline_controller.cli", "status", str(self.run_dir), "--json"],
            env=self._env, capture_output=True, check=True, cwd=ROOT,
        )  # fmt: skip
        return [worker for worker in json.loads(status.stdout)["workers"] if worker["state"] != "gone"]


def _children(process_id: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(process_id).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _kill(process_id: int) -> None:
    if psutil.pid_exists(process_id):
        os.kill(process_id, signal.SIGKILL)
