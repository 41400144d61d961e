"""Temporary folders of processes. The folder of a process that was killed is removed by the next process that makes one."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

PREFIX = "frostline-"
OWNER = "owner.lock"


class ScratchFolder:
    """A new folder in the system's folder for temporary files, readable by this user alone. `close` removes it.

    The process that owns the folder locks a file in it; the kernel releases the lock when the process ends, in whatever way. The
    folder is not in the run directory because paths must be short: a UNIX socket's path has at most about a hundred characters.
    """

    def __init__(self) -> None:
        sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        draft = self.path / f"{OWNER}.new"
        self._lock = os.open(draft, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(draft, self.path / OWNER)  # so `sweep` of another process never finds the file unlocked

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the folder. May be called again."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def sweep() -> None:
    """Remove this user's scratch folders whose owners have ended."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it is another user's, locked, or removed meanwhile
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            lock = os.open(folder / OWNER, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
