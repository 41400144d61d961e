"""The functions that warm workers run in tests of process groups: forming, breaking and dropping them, by the trainer's own
code."""

import contextlib
import gc
import os
import signal
import threading
import time
from datetime import timedelta
from typing import Any

import psutil
import torch

from frostline_contract.plan import Plan
from frostline_trainer.generations.formation import Formation
from frostline_trainer.generations.groups import Groups
from frostline_trainer.transport.collectives import Group
from tests.forming import form_groups

FORMING = timedelta(seconds=60)
COLLECTIVES = ("all_reduce", "receive", "send", "all_to_all", "broadcast")


def resources() -> tuple[int, int, int]:
    """Return (file descriptors, threads, resident KiB) of this process."""
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), resident


def reform(worker_id: str, plans: list[dict[str, Any]], broken: list[bool]) -> list[tuple[int, int, int]]:
    """Form and drop the groups of one plan after the other. broken: whether a member leaves in the middle of a collective.

    Returns this process's resources after each.
    """
    torch.set_num_threads(1)
    counted = []
    for fields, breaks in zip(plans, broken, strict=True):
        plan = Plan.model_validate(fields)
        groups = form_groups(plan, worker_id, "gloo", FORMING)
        _use(groups, breaks and worker_id == plan.participants[-1])
        groups.interrupt()
        groups.close()
        del groups
        gc.collect()
        counted.append(resources())
    return counted


def _use(groups: Groups, leaves: bool) -> None:
    """Run a few collectives in each group; with `leaves` all but the last one, in which the others then fail."""
    assert groups.world is not None
    with contextlib.suppress(RuntimeError):
        groups.along("dp").all_reduce_sum(torch.ones(1000))
        groups.along("pp").all_reduce_sum(torch.ones(1000))
        groups.moving.broadcast(torch.ones(1000), 0)
        if not leaves:
            groups.world.all_reduce_sum(torch.ones(1000))


def sum_along(worker_id: str, plan: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return, for each axis along which this member has a group, its index in that group, and the sum of 2 ** global rank over
    the group's members."""
    torch.set_num_threads(1)
    made = Plan.model_validate(plan)
    groups = form_groups(made, worker_id, "gloo", FORMING)
    found = {}
    for axis, group in groups.lines.items():
        members = torch.tensor([2 ** made.placement.global_ranks[worker_id]], dtype=torch.int64)
        group.all_reduce_sum(members)
        found[axis] = (groups.along(axis).index, int(members))
    groups.close()
    return found


def wait_for_stopped(worker_id: str, plan: dict[str, Any], collective: str) -> float:
    """Wait in `collective` for the last participant, which stops itself (SIGSTOP); the wait is interrupted after 0.5 s.

    Returns the seconds from the interruption to the end of the wait; 0 for the stopped participant.
    """
    torch.set_num_threads(1)
    made = Plan.model_validate(plan)
    group = form_groups(made, worker_id, "gloo", FORMING).moving
    processes = torch.zeros(group.size, dtype=torch.int64)
    processes[group.index] = os.getpid()
    group.all_reduce_sum(processes)
    if group.index == group.size - 1:
        os.kill(os.getpid(), signal.SIGSTOP)
        group.interrupt()
        group.close()
        return 0.0
    # The first participant continues it, which must not come before its stop.
    while group.index == 0 and psutil.Process(int(processes[-1])).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    interrupted: list[float] = []
    timer = threading.Timer(0.5, lambda: (interrupted.append(time.monotonic()), group.interrupt()))
    timer.start()
    try:
        _block(group, collective)
        raise AssertionError(f"{collective} with a stopped member returned")
    except RuntimeError:
        # Where another member was interrupted first, its closed sockets have ended this wait already.
        waited = time.monotonic() - interrupted[0] if interrupted else 0.0
    timer.join()
    group.close()
    if group.index == 0:
        os.kill(int(processes[-1]), signal.SIGCONT)
    return waited


def _block(group: Group, collective: str) -> None:
    """Wait for the last member, which never comes."""
    last, big = group.size - 1, 8 << 20
    if collective == "all_reduce":
        group.all_reduce_sum(torch.ones(100))
    elif collective == "receive":
        group.receive(torch.ones(100), last, 7)
    elif collective == "send":
        group.send(torch.ones(big), last, 7).wait()
    elif collective == "all_to_all":
        counts = [2] * group.size
        group.all_to_all(torch.ones(2 * group.size), torch.ones(2 * group.size), counts, counts)
    else:
        group.broadcast(torch.ones(100), last)


def interrupt_forming(worker_id: str, plan: dict[str, Any]) -> tuple[float, str]:
    """Form groups whose other participants never come, interrupted after 0.3 s. Returns the duration in seconds, and the
    error."""
    formation = Formation(Plan.model_validate(plan), worker_id, "gloo", FORMING)
    started = time.monotonic()
    threading.Timer(0.3, formation.interrupt).start()
    try:
        formation.form()
    except RuntimeError as error:
        return time.monotonic() - started, str(error)
    raise AssertionError("groups were formed with nobody")
