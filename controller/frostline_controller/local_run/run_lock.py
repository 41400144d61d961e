"""The lock of a run directory: one `frostline run` or `resume` owns it at a time, as long as its process lives."""

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from frostline_contract.run_directory import RunDirectory
from frostline_controller.local_run.errors import UserMistake

ASKED_SECONDS = 0.5
"""Seconds to try for the lock: a process that only looks for the owner also holds the lock for a moment."""


@contextlib.contextmanager
def owned(folder: Path, how_to_see: str = "") -> Iterator[None]:
    """Own the run directory until the end of the block. Raises UserMistake with the name of another process that owns it.

    The kernel releases the lock when the process ends, however it ends.

    Args:
        folder: a run directory, or that of a sweep.
        how_to_see: the way to see the owner's progress, for the message; "": the command for a run.
    """
    seen = how_to_see or f"see it with `frostline status {folder} --watch`"
    try:
        handle = os.open(RunDirectory(folder).lock, os.O_CREAT | os.O_RDWR, 0o644)
    except OSError as error:
        raise UserMistake(f"{folder}: cannot be written ({error.strerror}); give a directory that can") from None
    try:
        deadline = time.monotonic() + ASKED_SECONDS
        while not _taken(handle, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise UserMistake(f"{folder} is running; {seen} ({_named(handle)} owns it)")
            time.sleep(0.02)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(handle)


def owner(folder: Path) -> str:
    """Return the process that owns a run directory, in words; "" for none."""
    try:
        handle = os.open(RunDirectory(folder).lock, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return "" if _taken(handle, fcntl.LOCK_SH) else _named(handle)
    finally:
        os.close(handle)


def _taken(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _named(handle: int) -> str:
    return os.pread(handle, 200, 0).decode(errors="replace") or "another process"
