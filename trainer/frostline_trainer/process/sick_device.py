"""Handles a device that has failed, hangs, or has too little memory (docs/adr/0011-devices.md).

An error of a CUDA context is permanent: every later call in this process fails, its memory's contents are unknown, and only
another process can use the device again. So the process ends at once, with an exit code of its own; the exit reporter reports it
to the controller, and its units count as lost. Too little memory is no such error: the process goes on, and reports what it
measured.
"""

import logging
import os
import sys
import threading
from typing import NoReturn

import torch

from frostline_contract.exit_codes import DEVICE
from frostline_proto.v1 import control_pb2
from frostline_trainer.memory import forget_peak, peak_of
from frostline_trainer.process.self_test import SickDevice
from frostline_trainer.step.context import RunContext

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""How long a device may take for one addition, which waits behind its queued work, at most one step."""
POLL_SECONDS = 0.01


def is_device_error(failure: BaseException | None) -> bool:
    """Whether the failure, or one of its causes, is a device's error."""
    while failure is not None:
        if isinstance(failure, torch.AcceleratorError | SickDevice):
            return True
        failure = failure.__cause__ or failure.__context__
    return False


def answers(context: RunContext, seconds: float = ANSWER_SECONDS) -> str:
    """Why the device is unusable; empty if it computes. A CPU always does.

    On a broken device a library may raise any RuntimeError, and a stuck device raises none; so this function lets the device
    compute something. It does so in another thread, since the call may never return.
    """
    clock = context.device_clock
    if not clock.runs_behind:
        return ""
    said: list[str] = []
    given_up = threading.Event()

    def ask() -> None:
        try:
            if context.device.type == "cuda":
                torch.ones(1, device=context.device).add_(1)
            end = clock.mark()
            while not end.query() and not given_up.wait(POLL_SECONDS):
                pass
        except RuntimeError as error:
            said.append(str(error))
        else:
            said.append("")

    asking = threading.Thread(target=ask, name="ask-device", daemon=True)
    asking.start()
    asking.join(seconds)
    answer = list(said)  # a later answer is ignored
    given_up.set()
    return answer[0] if answer else f"it has not answered within {seconds:g} s"


def end_process(why: object) -> NoReturn:
    """End the process at once: no clean-up may wait for the device, and no piece of this process is reported as intact."""
    log.critical("the device is of no use, this process ends with code %d: %s", DEVICE, why)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(DEVICE)


def end_if_sick(failure: BaseException) -> None:
    """End the process if the failure is its device's, since such a device's memory cannot be trusted."""
    if is_device_error(failure):
        end_process(failure)


def end_if_silent(context: RunContext) -> None:
    """End the process if its device does not compute any more; called at the end of a generation, for any reason."""
    if why := answers(context):
        end_process(why)


def memory_shortage(context: RunContext) -> control_pb2.MemoryShortage:
    """The measured memory use when memory ran out, bytes. Also frees the allocator's unused memory."""
    peak, limit = peak_of(context.device)
    forget_peak(context.device)
    limit = limit or context.job.placement.worker_memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return control_pb2.MemoryShortage(peak_bytes=peak, limit_bytes=limit)
