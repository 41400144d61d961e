"""Plants failing, lying, stalling and deadly writes in every process of a run; Python imports this file by its name at its start.

`$FROSTLINE_CHAOS_WRITES/<index>.json` has `{"match", "at", "how", "times", "seconds"}`: it hits the next `times` writes to a file
whose `folder/name` contains `match`. at: "sync" (its bytes come to disk) or "name" (it gets its name). how: "fail" (an error,
nothing is written), "lie" (written, and an error is reported), "stall" (it takes `seconds`), "kill" (written; then kill -9 of the
whole run). The process that hits a write first creates `<index>.<count>`, so that exactly `times` writes are hit, in whichever
processes.
"""

import contextlib
import errno
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run_files import now_in

FOLDER = "FROSTLINE_CHAOS_WRITES"
OWNER = "owner"
"""The file with the process id of the run's `frostline`: all others die with it."""

_fsync = os.fsync


def _planted(name: str, at: str) -> tuple[dict[str, Any], Path] | None:
    """Return the fault of this write, and the file that claims it for the write; None where there is none."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    for file in sorted(Path(folder).glob("*.json")):
        write = json.loads(file.read_text())
        if write["at"] != at or write["match"] not in name:
            continue
        for count in range(write["times"]):
            with contextlib.suppress(FileExistsError):
                claim = file.with_suffix(f".{count}")
                handle = os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
                os.write(handle, _now(name))
                os.close(handle)
                return write, claim
    return None


def _now(name: str) -> bytes:
    said = {"name": name, "process": os.getpid(), "time_seconds": time.time()}
    return json.dumps(said | now_in(Path(os.environ[FOLDER]).with_name("run"))).encode()


def _short(path: str) -> str:
    """Return a path's folder name and file name."""
    return "/".join(str(path).split("/")[-2:])


def _met(name: str, at: str, do: Callable[[], Any]) -> Any:
    planted = _planted(name, at)
    how = planted[0]["how"] if planted is not None else ""
    if planted is not None and how == "stall":
        time.sleep(planted[0]["seconds"])
    if how == "fail":
        raise OSError(errno.ENOSPC, f"No space left on device (planted at {name})")
    done = do()
    if how == "lie":
        raise OSError(errno.EIO, f"Input/output error (planted at {name}, which was written)")
    if planted is not None and how == "kill":
        draft = planted[1].with_name(f"draft {os.getpid()}")
        draft.write_bytes(_now(name))  # as it is after this write
        os.replace(draft, planted[1])
        os.kill(int((Path(os.environ[FOLDER]) / OWNER).read_text()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return done


def _synced(handle: int) -> None:
    name = _short(os.readlink(f"/proc/self/fd/{handle}")) if os.environ.get(FOLDER) else ""
    _met(name, "sync", lambda: _fsync(handle))


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    def planted(source: Any, target: Any, **more: Any) -> Any:
        return _met(_short(os.fspath(target)), "name", lambda: function(source, target, **more))

    return planted


os.fsync = _synced
for _function in ("replace", "rename", "link"):
    setattr(os, _function, _named(getattr(os, _function)))
