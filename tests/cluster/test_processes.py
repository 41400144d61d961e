"""No process of a test cluster outlives the test run, however the run ends."""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

from tests.cluster import processes
from tests.cluster.nodes import ROOT
from tests.cluster.waiting import wait_for

KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from tests.cluster import processes
from tests.cluster.cluster import start_guard
mark, folder = sys.argv[1], Path(sys.argv[2])
start_guard(mark, folder)
shell = "sleep 600 & setsid sleep 600 & wait"
child = subprocess.Popen(["sh", "-c", shell], env={**os.environ, processes.VARIABLE: f"{mark}/node"}, start_new_session=True)
print("ready", flush=True)
sys.stdin.read()
"""


def test_the_guard_ends_what_a_killed_run_has_left(tmp_path: Path) -> None:
    mark, folder = f"test-{secrets.token_hex(4)}", tmp_path / "cluster"
    folder.mkdir()
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", KILLED, mark, str(folder)]
    with subprocess.Popen(command, env=env, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None and run.stdout.readline() == b"ready\n"
        wait_for(lambda: len(processes.marked(mark)) == 3, "the shell and both of its children", 20)
        assert set(processes.marked(f"{mark}/node")) == set(processes.marked(mark)) and not processes.marked(mark[:-1])
        run.send_signal(signal.SIGKILL)
    wait_for(lambda: not processes.marked(mark), "all of them to end", 20)
    wait_for(lambda: not folder.exists(), "the folder to go", 20)
