"""Checks for things that a run must not leave: a process, a listening port, a temporary file, a half-written file."""

import socket
import time
from pathlib import Path

import psutil

from frostline_contract.run_directory import RunDirectory
from tests.e2e.runs import json_lines

ENDING_SECONDS = 5.0
"""The longest time in which a killed process vanishes after the command has returned, in seconds."""
UNFINISHED = ("*.partial", "*.new", "*.tmp", ".*.[0-9a-f]*")


def leftovers(run: Path, temporary: Path, checkpoints: Path) -> list[str]:
    """Return what is left of the run in `run`, whose temporary files went to `temporary`, in words.

    checkpoints: the folder of its checkpoints, in the run directory or elsewhere.
    """
    processes = wait_until_gone(run)
    found = [f"process {process.pid} still runs: {_words(process)}" for process in processes]
    found += [f"port {port} still listens" for port in ports_of(run) if listens(port) and not held_by_another(port, run)]
    found += [f"temporary file {path}" for path in sorted(temporary.iterdir())]
    folders = [run] if checkpoints.is_relative_to(run) and ".." not in checkpoints.parts else [run, checkpoints]
    found += [f"half-written {path.relative_to(folder)}" for folder in folders for path in sorted(unfinished(folder))]
    return found


def unfinished(run: Path) -> list[Path]:
    """Return the files that are not whole, judged by their names.

    A file with a second name is whole: a process that is killed between naming the file and removing the draft's name leaves a
    name, not half a file. A worker that one planned fault kills while it records another leaves half a record, which is the
    test's own: no run has one without planned faults.
    """
    found = (path for pattern in UNFINISHED for path in run.rglob(pattern) if path.parent != RunDirectory(run).faults)
    return [path for path in found if path.stat().st_nlink == 1]


def wait_until_gone(run: Path) -> list[psutil.Process]:
    """Wait, and return the processes of a run that have not ended in time."""
    deadline = time.monotonic() + ENDING_SECONDS
    while (processes := processes_of(run)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return processes


def processes_of(run: Path) -> list[psutil.Process]:
    """Return the processes that name the run in command line or environment, or hold one of its files open (a forked worker its
    log)."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if _names(process, run):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def ports_of(run: Path) -> list[int]:
    """Return the ports of the run's services and workers, from its files."""
    ports = [int(path.read_text().rpartition(":")[2]) for path in run.glob("*.address")]
    ports += [int(log.stem.split("-")[1]) for log in (run / "redis").rglob("redis-*.log")]
    ports += [line["store_port"] for line in json_lines(run / "plans.jsonl") if line.get("store_port")]
    return sorted(set(ports))


def listens(port: int) -> bool:
    """Whether a process accepts connections on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def held_by_another(port: int, run: Path) -> bool:
    """Whether another run listens on the port, which was free again: another case, whose folder lies beside this one's, or any
    run whose log the process holds open.

    A process that names this run, or none, does not count as another's.
    """
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status != psutil.CONN_LISTEN or not connection.laddr or connection.laddr.port != port or not connection.pid:
            continue
        try:
            holder = psutil.Process(connection.pid)
            return not _names(holder, run) and (_names(holder, run.parent.parent) or _logs_a_run(holder))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False
    return False


def _logs_a_run(process: psutil.Process) -> bool:
    """Whether a process holds the log of some run open."""
    logs = (Path(file.path) for file in process.open_files())
    return any(log.suffix == ".log" and RunDirectory(log.parent.parent).holds_run() for log in logs)


def _names(process: psutil.Process, folder: Path) -> bool:
    """Whether a process names something in the folder: in its command line, its environment or the files that it holds open."""
    words = [*process.cmdline(), *process.environ().values(), *(file.path for file in process.open_files())]
    return any(str(folder) in word for word in words)


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:160]
    except psutil.NoSuchProcess:
        return "ended meanwhile"
