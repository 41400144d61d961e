"""Child processes that never outlive the run: a session of their own, killed as a group, and by the kernel when we die."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LAUNCHER = Path(__file__).with_name("mortal.py")


def mortal(argv: Sequence[str]) -> list[str]:
    """The command that runs a program which dies with us: a launcher asks the kernel for that, then becomes the program.

    Not a `preexec_fn`: that runs Python between fork and exec, in a copy of a process whose other threads (gRPC's) may have held
    any lock; such a child stood still for ever, and the thread that started it with it.
    """
    if not sys.platform.startswith("linux"):
        return list(argv)
    return [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *argv]


def python_module(name: str) -> tuple[str, ...]:
    """The command that runs a module of ours. -P: no file of the working directory can stand for a library."""
    return (sys.executable, "-P", "-m", name)


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """An environment for Python processes that work in another directory, and for their own children: what a user has named by
    a relative path stays what it is, and the working directory is no place to import from."""
    safe = {**env, "PYTHONSAFEPATH": "1"}
    if env.get("PYTHONPATH"):
        safe["PYTHONPATH"] = os.pathsep.join(os.path.abspath(one) for one in env["PYTHONPATH"].split(os.pathsep) if one)
    return safe


def start_child(argv: list[str], env: dict[str, str], log: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own, in `folder`, its output appended to `log`. Call it from a thread that lives as
    long. Raises OSError."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        return subprocess.Popen(
            mortal(argv),
            env=env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def signal_child(process: subprocess.Popen[bytes], number: int) -> None:
    """To the child itself, which passes on what its own children need to know."""
    if process.poll() is None:
        process.send_signal(number)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the child and everything in its session that is left of it; returns when the child has ended."""
    strike_group(process)
    process.wait()


def strike_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL as in `kill_group`, and wait for nothing."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all of them have ended already
        os.killpg(process.pid, signal.SIGKILL)


def last_lines(log: Path, count: int = 5) -> str:
    """The end of a log, for a message."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    except OSError as error:
        return f"{log} cannot be read ({error.strerror})"
