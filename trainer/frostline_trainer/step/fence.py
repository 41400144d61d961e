"""The fence: waits until a device has finished its queued work, before a result of it is read, voted on or reported as held.

A GPU runs behind the thread that queues its work. With NCCL, a returned wait does not mean that a message has arrived: a dead
peer is silent, and an abort ends the kernel and leaves undefined memory. Therefore each member's computation ends with a fence
(docs/protocols.md 2.2). The thread polls the device, because a wait inside the driver could not be interrupted.
"""

import time
from contextlib import AbstractContextManager, nullcontext

from frostline_trainer.generations.groups import Groups
from frostline_trainer.step.device_trail import Trail
from frostline_trainer.transport.waiting import thread_blocked

POLL_SECONDS = 0.0002
"""Seconds between two polls of the device: less than the end of a step costs on any GPU."""


def wait_for_device(trail: Trail, groups: Groups | None = None) -> None:
    """Wait until the device has done all its queued work and no process group has failed; return at once on a CPU.

    Args:
        trail: The device's trail, which is read up to the fence.
        groups: The groups whose messages are part of the work; None if there are no messages.

    Raises RuntimeError if a group was interrupted or its communicator has failed, and the device's own error if it failed.
    """
    if not trail.is_left:
        return
    end = trail.mark()
    with _waiting(groups):
        while not end.query():
            if groups is not None:
                groups.check()
            time.sleep(POLL_SECONDS)
    if groups is not None:
        groups.check()  # an abort ends the work too, and leaves its output undefined
    trail.read()


def _waiting(groups: Groups | None) -> AbstractContextManager[None]:
    """Count the wait as waiting for other members if the groups use NCCL; otherwise the device has only its own work to do."""
    on_device = groups is not None and groups.wait_on_device
    return thread_blocked() if on_device else nullcontext()
