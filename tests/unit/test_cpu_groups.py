"""Workers of one speed: groups of both versions, what is said where there can be none, and a quota that really holds."""

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from frostline_contract import cpu_groups
from frostline_contract.cpu_groups import CpuGroups, NoCpuGroups, enter_from, own_period_seconds
from frostline_contract.job import Job, load_job
from frostline_controller.cluster.local.cluster import LocalCluster
from frostline_controller.planner.inputs import parallel_slots

DIGITS_JOB = Path(__file__).parents[2] / "examples" / "image_classification" / "digits.yaml"
BURN = """
import os, resource, sys, time
from frostline_contract.cpu_groups import enter_from, own_period_seconds
enter_from(os.environ, sys.argv[1])
started, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
while time.monotonic() < started + 1.5: pass
print((resource.getrusage(resource.RUSAGE_SELF).ru_utime - used) / (time.monotonic() - started))
print(own_period_seconds())
"""


@pytest.fixture
def groups() -> CpuGroups:
    try:
        return CpuGroups.create()
    except NoCpuGroups as reason:
        pytest.skip(str(reason))


def test_a_worker_gets_its_share_and_no_more(groups: CpuGroups) -> None:
    env = {**os.environ, **groups.environment(0.3)}
    try:
        burning = [subprocess.Popen([sys.executable, "-c", BURN, f"w{n}"], env=env, stdout=subprocess.PIPE) for n in range(2)]
        said = [one.communicate()[0].split() for one in burning]
    finally:
        time.sleep(0.1)
        groups.remove()
    assert max(float(share) for share, _ in said) < 0.4, "one period more at most, and what of a tick is counted late"
    assert {float(period) for _, period in said} == {0.01}
    assert not groups.folder.exists(), "nothing is left"


@pytest.mark.parametrize("gone", [errno.ENOENT, errno.ENODEV])
def test_a_group_that_another_worker_removes_before_it_has_a_process_is_made_again(
    gone: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures, entered = [OSError(gone, os.strerror(gone))] * 2, []

    def enter(group: Path, cpus: float) -> None:
        if failures:
            raise failures.pop()
        entered.append((group, cpus))

    monkeypatch.setattr(cpu_groups, "_enter", enter)
    enter_from({cpu_groups.GROUPS_ENV: str(tmp_path), cpu_groups.SHARE_ENV: "0.3"}, "w")
    assert entered == [(tmp_path / "w", 0.3)]
    failures.append(OSError(errno.EACCES, "denied"))
    with pytest.raises(PermissionError):
        enter_from({cpu_groups.GROUPS_ENV: str(tmp_path), cpu_groups.SHARE_ENV: "0.3"}, "w")


def test_groups_of_a_run_that_was_killed_go_with_the_next(groups: CpuGroups) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = groups.folder.with_name(f"frostline-{ended.pid}")
    _make(left / "worker")
    CpuGroups.create()
    assert not left.exists()
    groups.remove()


def _make(group: Path) -> None:
    """Make a group and the one that it is in, which a test in another process may sweep before it has a child."""
    for left in range(cpu_groups.TRIES, 0, -1):
        try:
            group.mkdir(parents=True)
            break
        except OSError as error:
            if error.errno not in cpu_groups.REMOVED or left == 1:
                raise


def _job(worker_cpus: float | None = None) -> Job:
    share = "null" if worker_cpus is None else f"{worker_cpus:g}"
    return load_job(DIGITS_JOB, ["placement.workers=4", f"placement.worker_cpus={share}"])


def _version_2(tmp_path: Path, own: str, controllers: str = "cpu memory") -> tuple[Path, Path]:
    """A tree of version 2 as far as it is read and written, and this process's line."""
    mount = tmp_path / "cgroup"
    base = mount / own.lstrip("/")
    base.mkdir(parents=True)
    for name, text in (("cgroup.controllers", controllers), ("cgroup.subtree_control", ""), ("cgroup.procs", f"{os.getpid()}\n")):
        (base / name).write_text(text)
    line = tmp_path / "self"
    line.write_text(f"0::{own}\n")
    return mount, line


@pytest.mark.parametrize("gone", cpu_groups.REMOVED)
def test_a_dead_runs_group_that_another_run_sweeps_first_is_no_reason_to_refuse(
    gone: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount, own = _version_2(tmp_path, "/box")
    left, listed, error = mount / "box" / f"frostline-{2**31}", Path.iterdir, OSError(gone, os.strerror(gone))

    def late(folder: Path) -> Iterator[Path]:
        if folder == left:
            left.rmdir()
            raise error
        return listed(folder)

    monkeypatch.setattr(Path, "iterdir", late)
    left.mkdir()
    assert CpuGroups.create(mount, own).folder.is_dir()
    left.mkdir()
    error = PermissionError(errno.EACCES, "denied", str(left))
    with pytest.raises(NoCpuGroups, match=f"{left} cannot be written"):
        CpuGroups.create(mount, own)


def test_version_2_hands_the_controller_on_and_moves_its_own_processes_aside(tmp_path: Path) -> None:
    mount, own = _version_2(tmp_path, "/user.slice/run.scope")
    groups = CpuGroups.create(mount, own)
    base = mount / "user.slice/run.scope"
    assert (groups.version, groups.folder) == (2, base / f"frostline-{os.getpid()}")
    assert (base / "cgroup.subtree_control").read_text() == (groups.folder / "cgroup.subtree_control").read_text() == "+cpu"
    assert (base / "frostline-rest" / "cgroup.procs").read_text() == str(os.getpid()), "a group that hands on has no process"
    enter_from(groups.environment(0.4), "w")
    assert (groups.folder / "w" / "cpu.max").read_text() == "4000 10000"
    assert (groups.folder / "w" / "cgroup.procs").read_text() == str(os.getpid())


def test_the_period_of_a_quota_is_read_where_there_is_one(tmp_path: Path) -> None:
    mount, own = _version_2(tmp_path, "/box")
    assert own_period_seconds(mount, own) == 0.0, "a root has no such file"
    for text, seconds in (("max 100000", 0.0), ("40000 100000", 0.1)):
        (mount / "box" / "cpu.max").write_text(text + "\n")
        assert own_period_seconds(mount, own) == seconds
    assert own_period_seconds(tmp_path / "nowhere", tmp_path / "no-such-file") == 0.0


def test_what_cannot_be_is_said_with_what_to_do(tmp_path: Path) -> None:
    mount, own = _version_2(tmp_path, "/", controllers="memory")
    with pytest.raises(NoCpuGroups, match=r"placement\.worker_cpus needs the cpu controller.*systemd-run"):
        CpuGroups.create(mount, own)
    with pytest.raises(NoCpuGroups, match=r"placement\.worker_cpus needs control groups.*cannot be written.*systemd-run"):
        CpuGroups.create(tmp_path / "nowhere", tmp_path / "no-such-file")
    job = _job(100.0)
    with pytest.raises(ValueError, match=r"placement\.worker_cpus is 100 and 4 workers would need 400 of"):
        LocalCluster(tmp_path, job)


def test_the_planner_counts_devices_where_workers_have_shares() -> None:
    assert parallel_slots(_job(), 2) == 2
    assert parallel_slots(_job(0.4), 2) is None
    assert parallel_slots(_job(1.0), 2) == 2
