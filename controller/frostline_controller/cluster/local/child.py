"""Child processes that never outlive the run: each has its own session, is killed as a group, and by the kernel when its parent
dies."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

LAUNCHER = Path(__file__).with_name("mortal.py")


def mortal(argv: Sequence[str]) -> list[str]:
    """Return the command that runs a program which dies with this process: a launcher requests that of the kernel, then becomes
    the program.

    A `preexec_fn` would not do: it runs Python between fork and exec, in a copy of a process whose other threads (gRPC's) may
    have held any lock. Such a child stood still for ever, and with it the thread that started it.
    """
    if not sys.platform.startswith("linux"):
        return list(argv)
    return [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), *argv]


def python_module(name: str) -> tuple[str, ...]:
    """Return the command that runs a module of this project. -P: no file of the working directory can stand for a library."""
    return (sys.executable, "-P", "-m", name)


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment for Python processes that work in another directory, and for their own children.

    Relative paths in PYTHONPATH become absolute, so that they stay valid, and nothing is imported from the working directory.
    """
    safe = {**env, "PYTHONSAFEPATH": "1"}
    if env.get("PYTHONPATH"):
        safe["PYTHONPATH"] = os.pathsep.join(os.path.abspath(one) for one in env["PYTHONPATH"].split(os.pathsep) if one)
    return safe


def start_child(argv: list[str], env: dict[str, str], log: Path, folder: Path) -> subprocess.Popen[bytes]:
    """Start a program in its own session, in `folder`, with its output appended to `log`.

    Call it from a thread that lives as long as the program should. Raises OSError.
    """
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
    """Send a signal to the child itself, which passes it on to its own children as needed."""
    if process.poll() is None:
        process.send_signal(number)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL to the child and to everything left in its session; return when the child has ended."""
    strike_group(process)
    process.wait()


def strike_group(process: subprocess.Popen[bytes]) -> None:
    """Send SIGKILL as `kill_group` does, without waiting."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # all of them have ended already
        os.killpg(process.pid, signal.SIGKILL)


def last_lines(log: Path, count: int = 5) -> str:
    """Return the last lines of a log, for a message."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-count:])
    except OSError as error:
        return f"{log} cannot be read ({error.strerror})"
