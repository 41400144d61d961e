"""All processes of a container, pod, node or cluster, however they were started: identified by a mark in their environment
(Linux).

    python -m tests.cluster.processes MARK FOLDER...    ends all of MARK and removes the folders when its standard input ends

By the latter no process outlives a test run that is killed: the test run holds the other end of that pipe.
"""

import os
import shutil
import signal
import sys
from pathlib import Path

VARIABLE = "FROSTLINE_TEST_MARK"
"""cluster/node/pod uid/container; each prefix that ends before a slash is a mark of the process too."""


def marked(mark: str) -> list[int]:
    """Return the ids of the marked processes, without this one."""
    wanted = f"{VARIABLE}={mark}".encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            variables = Path(f"/proc/{entry.name}/environ").read_bytes().split(b"\0")
        except OSError:  # ended meanwhile, or another user's
            continue
        if any(one == wanted or one.startswith(wanted + b"/") for one in variables):
            found.append(int(entry.name))
    return found


def signal_marked(mark: str, number: int) -> None:
    """Send a signal to all marked processes, also to those that start meanwhile."""
    reported: set[int] = set()
    while new := set(marked(mark)) - reported:
        for process_id in new:
            send(process_id, number)
        reported |= new


def working_in(folders: list[str]) -> list[int]:
    """Return process ids by working directory, for processes such as Redis that overwrite their environment."""
    found = []
    for entry in os.scandir("/proc"):
        try:
            place = os.readlink(f"/proc/{entry.name}/cwd") if entry.name.isdigit() else ""
        except OSError:  # ended meanwhile, or another user's
            continue
        if any(place.startswith(f"{folder}/") for folder in folders):
            found.append(int(entry.name))
    return found


def descendants(process_id: int) -> list[int]:
    """Return a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                after_name = Path(f"/proc/{entry.name}/stat").read_text().rpartition(")")[2]
            except OSError:  # ended meanwhile
                continue
            children.setdefault(int(after_name.split()[1]), []).append(int(entry.name))
    found = [process_id]
    for one in found:
        found += children.get(one, ())
    return found


def send(process_id: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    try:
        os.kill(process_id, number)
    except ProcessLookupError:
        return


def main() -> int:
    mark, *folders = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while sys.stdin.buffer.read(4096):
        continue
    signal_marked(mark, signal.SIGKILL)
    for process_id in working_in(folders):
        send(process_id, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
