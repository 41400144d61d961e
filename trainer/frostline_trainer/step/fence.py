"""The fence: nothing that a device has computed is read, promised or voted before the device has done it, and all is well.

A GPU runs behind the thread that gives it work, and with NCCL a message that was waited for may not have come: a peer's death is
silence, and an abort ends the work and leaves anything in its memory. So the end of a member's computation is a place of its own
(docs/protocols.md 2.2). The thread looks again and again whether the device has come there, instead of waiting inside the driver,
where no interruption would reach it.
"""

import time
from contextlib import AbstractContextManager, nullcontext

from frostline_trainer.generations.groups import Groups
from frostline_trainer.step.device_trail import Trail
from frostline_trainer.transport.waiting import thread_blocked

POLL_SECONDS = 0.0002
"""Between two looks at the device: below what a step's end costs on any GPU."""


def wait_for_device(trail: Trail, groups: Groups | None = None) -> None:
    """Return when the device has done all that it was given so far, and every group is sound; at once on a CPU.

    Args:
        trail: of the device's work, which is read where the device has come.
        groups: whose messages are among the work; None where it is the device's own work only.

    Raises RuntimeError where a group was interrupted or its communicator has failed, and the device's own error where it failed.
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
        groups.check()  # an abort ends the work too: what it was to fill holds anything
    trail.read()


def _waiting(groups: Groups | None) -> AbstractContextManager[None]:
    """Under NCCL the device waits for others, and they are what is waited for; else it has nothing but its own work to do."""
    on_device = groups is not None and groups.wait_on_device
    return thread_blocked() if on_device else nullcontext()
