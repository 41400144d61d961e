"""Control groups of local workers: each worker gets a fixed share of a processor by a CPU quota, whatever else runs.

Linux has two versions of control groups. With version 1 a controller has a hierarchy of its own, and any group may have
processes. With version 2 there is one hierarchy; a group that hands controllers on to its children has no process itself.
(kernel.org: admin-guide/cgroup-v1/cgroups, scheduler/sched-bwc, admin-guide/cgroup-v2.)
"""

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MOUNT, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
GROUPS_ENV, SHARE_ENV = "FROSTLINE_CPU_GROUPS", "FROSTLINE_WORKER_CPUS"
PREFIX, REST = "frostline-", "rest"
PERIOD_MICROSECONDS = 10_000
"""Period of the quotas: a worker that has used up its quota waits at most this long for the next one."""
QUOTA_MICROSECONDS_MIN = 1_000
"""The smallest quota that the kernel accepts for a group."""
TRIES = 20
REMOVED = (errno.ENOENT, errno.ENODEV)
"""Another process has removed a group in which no process was, a new one or a dead run's, before it was opened or written."""


class NoCpuGroups(ValueError):
    """Control groups cannot be made here; the text says why, and what to do."""


@dataclass(frozen=True)
class CpuGroups:
    """The group of a run, with a group of each worker in it.

    Attributes:
        folder: the group's folder.
        version: of the control groups: 1 or 2.
    """

    folder: Path
    version: int

    @staticmethod
    def create(mount: Path = MOUNT, own: Path = OWN) -> "CpuGroups":
        """Make a run's group, named by this process; remove those whose process is gone. Raises NoCpuGroups."""
        try:
            base, version = _where(mount, own)
            _sweep(base)
            folder = base / f"{PREFIX}{os.getpid()}"
            folder.mkdir(exist_ok=True)
            if version == 2:
                _hand_on_cpu(folder)
            return CpuGroups(folder, version)
        except OSError as error:
            raise NoCpuGroups(
                f"placement.worker_cpus needs control groups, and {error.filename or mount} cannot be written "
                f"({error.strerror or error}); run as root, or in a scope of your own: systemd-run --user --scope -p "
                "Delegate=yes frostline run ...; or leave placement.worker_cpus out"
            ) from None

    def environment(self, cpus: float) -> dict[str, str]:
        """The environment variables of a worker's process, which `enter_from` reads."""
        return {GROUPS_ENV: str(self.folder), SHARE_ENV: repr(cpus)}

    def remove(self) -> None:
        """Remove the run's group and the groups in it; one whose process is still ending stays until the next `create`."""
        _remove(self.folder)


def enter_from(env: Mapping[str, str], name: str) -> None:
    """Move this process, with all that it starts, into a group of its own where the environment asks for that.

    The groups of workers that have ended are removed too. Call this function before threads start to compute.

    Args:
        env: the environment.
        name: of the new group, unique in the run.
    """
    if GROUPS_ENV not in env:
        return
    folder = Path(env[GROUPS_ENV])
    for left in range(TRIES, 0, -1):
        try:
            _enter(folder / name, float(env[SHARE_ENV]))
            break
        except OSError as error:
            if error.errno not in REMOVED or left == 1:
                raise
    for group in _children(folder):
        with suppress(OSError):  # it is in use
            group.rmdir()


def own_period_seconds(mount: Path = MOUNT, own: Path = OWN) -> float:
    """The period of the quota of the group that this process is in, in seconds; 0 where none can be read."""
    try:
        group, version = _where(mount, own)
        if version == 2:
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{what}_us").read_text().strip() for what in ("quota", "period"))
    except (OSError, ValueError, StopIteration):  # no control groups here, or none with a quota (the root has no such file)
        return 0.0
    return 0.0 if quota in ("-1", "max") else int(period) / 1e6


def _enter(group: Path, cpus: float) -> None:
    group.mkdir(parents=True, exist_ok=True)
    quota = max(QUOTA_MICROSECONDS_MIN, round(cpus * PERIOD_MICROSECONDS))
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS))
        (group / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        (group / "cpu.max").write_text(f"{quota} {PERIOD_MICROSECONDS}")
    (group / "cgroup.procs").write_text(str(os.getpid()))


def _where(mount: Path, own: Path) -> tuple[Path, int]:
    """(this process's group in the hierarchy that has the cpu controller, version of control groups)."""
    lines = [line.split(":", 2) for line in own.read_text().splitlines()]
    for _, controllers, path in lines:
        if "cpu" in controllers.split(","):
            return _group_of(mount / controllers, path), 1
    unified = next(path for _, controllers, path in lines if not controllers)
    base = _group_of(mount, unified)
    if "cpu" not in (base / "cgroup.controllers").read_text().split():
        raise NoCpuGroups(
            f"placement.worker_cpus needs the cpu controller, and {base} has none; run in a scope that is given it: systemd-run "
            "--user --scope -p Delegate=yes frostline run ...; or leave placement.worker_cpus out"
        )
    return base, 2


def _group_of(hierarchy: Path, path: str) -> Path:
    """The folder of a group; the hierarchy's root where `path` does not exist.

    In a container `path` may be the host's, of which the container sees only the root.
    """
    group = hierarchy / path.lstrip("/")
    return group if group.is_dir() else hierarchy


def _hand_on_cpu(folder: Path) -> None:
    """With version 2, enable the cpu controller for the children of this process's group.

    Such a group may have no process itself, so its processes move to a child group beside the run's.
    """
    base = folder.parent
    if "cpu" not in (base / "cgroup.subtree_control").read_text().split():
        rest = base / f"{PREFIX}{REST}"
        rest.mkdir(exist_ok=True)
        for process in (base / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (rest / "cgroup.procs").write_text(process)
        (base / "cgroup.subtree_control").write_text("+cpu")
    (folder / "cgroup.subtree_control").write_text("+cpu")


def _sweep(base: Path) -> None:
    for group in _children(base):
        owner = group.name.removeprefix(PREFIX)
        if group.name.startswith(PREFIX) and owner.isdigit() and not Path("/proc", owner).exists():
            _remove(group)


def _remove(folder: Path) -> None:
    for group in (*_children(folder), folder):
        with suppress(OSError):  # one of its processes is still ending
            group.rmdir()


def _children(folder: Path) -> list[Path]:
    """The groups in a group; none where another process, which sweeps too, has removed it."""
    try:
        return [one for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []
    except OSError as error:
        if error.errno not in REMOVED:
            raise
        return []
