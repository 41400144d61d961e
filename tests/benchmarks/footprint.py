"""Memory and processor time as the kernel counts them: a process's resident bytes, their peak, and its descendants."""

import os
from dataclasses import dataclass
from pathlib import Path


def resident_megabytes(process_id: int) -> float:
    """Return the resident memory now. Raises ProcessLookupError if the process is gone."""
    return _field(process_id, "VmRSS")


def peak_megabytes(process_id: int) -> float:
    """Return the peak of the resident memory. Raises ProcessLookupError if the process is gone."""
    return _field(process_id, "VmHWM")


@dataclass(frozen=True)
class Descendant:
    """A descendant of a process. command: its arguments, blank-separated. parent_command: its parent's; a fork has the same."""

    process_id: int
    command: str
    parent_command: str


def descendants(process_id: int) -> list[Descendant]:
    """Return all living descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            parents[int(entry.name)] = parent
    found, frontier = [], {process_id}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        found += [Descendant(child, _command(child), _command(parents[child])) for child in sorted(frontier)]
    return found


def processor_seconds(process_id: int) -> float:
    """Return a process's user and system time so far. Raises ProcessLookupError if the process is gone."""
    try:
        fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {process_id} is gone") from error
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _field(process_id: int, name: str) -> float:
    try:
        lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    except FileNotFoundError as error:
        raise ProcessLookupError(f"process {process_id} is gone") from error
    values = [line.split()[1] for line in lines if line.startswith(name + ":")]
    if not values:
        raise ProcessLookupError(f"process {process_id} has ended and holds no memory")
    return int(values[0]) * 1024 / 1e6


def _parent(entry: Path) -> int | None:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def _command(process_id: int) -> str:
    try:
        return Path(f"/proc/{process_id}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
