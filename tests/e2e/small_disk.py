"""A small disk of its own for a test: a tmpfs in a mount namespace, seen from outside through /proc."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A small disk. Processes whose command starts with `inside` see it at `path`; this process sees the same files at `seen`."""

    def __init__(self, path: Path, holder: subprocess.Popen[str]) -> None:
        self.path = path
        self.inside = ["nsenter", "-t", str(holder.pid), "-m"]
        self.seen = Path(f"/proc/{holder.pid}/root{path}")

    def fill(self) -> None:
        """Fill the disk until not one more byte can be written."""
        with open(self.seen / "fill", "ab", buffering=0) as file:
            for size in (65536, 512, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def free(self) -> None:
        (self.seen / "fill").unlink()


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a small disk at `path`; skip the test if this machine does not allow mounts."""
    if not (shutil.which("unshare") and shutil.which("nsenter")):
        pytest.skip("NO MOUNT: unshare and nsenter are not on PATH, so no disk was filled")
    path.mkdir()
    script = f'mount -t tmpfs -o size={megabytes}m none "$1" && echo mounted && exec cat'
    holder = subprocess.Popen(
        ["unshare", "-m", "sh", "-c", script, "sh", str(path)],
        stdin=subprocess.PIPE,  # it ends with this process, however that ends
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != "mounted\n":
            pytest.skip(f"NO MOUNT: user {os.getuid()} may not mount a file system, so no disk was filled")
        yield SmallDisk(path, holder)
    finally:
        holder.kill()
        holder.wait()
