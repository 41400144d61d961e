"""Child processes: they start whichever locks the parent's other threads hold, and never outlive their parent."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from frostline_controller.cluster.local.child import start_child

WAIT_SECONDS = 30.0
STARTS_ONE = """
import os, sys, time
from pathlib import Path
from frostline_controller.cluster.local.child import start_child
if sys.argv[2:] == ["stuck"]:  # what a copy of a process with gRPC's threads may do
    os.register_at_fork(after_in_child=lambda: time.sleep(3600))
folder = Path(sys.argv[1])
child = start_child(["sleep", "3600"], dict(os.environ), folder / "log", folder)
print(child.pid, flush=True)
time.sleep(3600)
"""


def child_of(folder: Path, *arguments: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process that starts one child; return it and the child's process id."""
    words = [sys.executable, "-c", STARTS_ONE, str(folder), *arguments]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True)
    assert parent.stdout is not None
    ready, _, _ = select.select([parent.stdout], [], [], WAIT_SECONDS)
    if not ready:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
    assert ready, "no child was started"
    return parent, int(parent.stdout.readline())


def runs(process_id: int) -> bool:
    """Return whether the process runs. A child without its parent has nobody to reap it: ended, it may be a zombie."""
    try:
        return psutil.Process(process_id).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def ends(process_id: int) -> bool:
    """Return whether the process ends in time."""
    deadline = time.monotonic() + WAIT_SECONDS
    while runs(process_id) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not runs(process_id)


def test_a_child_starts_where_a_fork_of_us_would_stand_still(tmp_path: Path) -> None:
    """Once a run hung for ever at a pod's start: the command's gRPC threads had been copied into the child (chaos, seed 6124)."""
    parent, child = child_of(tmp_path, "stuck")
    assert runs(child)
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()


def test_a_child_is_killed_with_its_parent(tmp_path: Path) -> None:
    parent, child = child_of(tmp_path)
    parent.kill()
    parent.wait()
    assert ends(child)


def test_the_child_is_the_program_itself(tmp_path: Path) -> None:
    """Its process id and exit status are the program's, and it leads a session of its own."""
    child = start_child(["sh", "-c", "exit $(ps -o sid= -p $$ | grep -c $$)"], dict(os.environ), tmp_path / "log", tmp_path)
    assert child.wait(WAIT_SECONDS) == 1


def test_a_program_that_is_not_there_is_named_in_the_log(tmp_path: Path) -> None:
    child = start_child(["no-such-program"], dict(os.environ), tmp_path / "log", tmp_path)
    assert child.wait(WAIT_SECONDS) == 127
    assert "no-such-program cannot be run: No such file" in (tmp_path / "log").read_text()
