"""A device that has failed, hangs, or has too little memory, and what the process does about it (docs/adr/0011-devices.md).

An error of a CUDA context stays: every later call in this process fails, what its memory holds is unknown, and only another
process may use the device again. So the process ends, at once and with a code of its own. Whoever reaps it tells the controller,
and its units count as lost. Too little memory is no such error: the process goes on, and says what it measured.
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
"""How long a device may take to add one to one: behind what it was still given to do, which is a step at most."""
POLL_SECONDS = 0.01


def is_device_error(failure: BaseException | None) -> bool:
    """Whether a device's error is the failure, or what it came from."""
    while failure is not None:
        if isinstance(failure, torch.AcceleratorError | SickDevice):
            return True
        failure = failure.__cause__ or failure.__context__
    return False


def answers(context: RunContext, seconds: float = ANSWER_SECONDS) -> str:
    """Why the device is of no use; empty where it computes. A CPU always does.

    A library on a broken device may raise any RuntimeError, and a device that is stuck raises nothing: so the device is asked. By
    a thread beside this one, since the call itself may not come back.
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
    answer = list(said)  # what comes later is too late
    given_up.set()
    return answer[0] if answer else f"it has not answered within {seconds:g} s"


def end_process(why: object) -> NoReturn:
    """End here and now: no clean-up may wait for the device, and nothing of this process is reported as intact."""
    log.critical("the device is of no use, this process ends with code %d: %s", DEVICE, why)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(DEVICE)


def end_if_sick(failure: BaseException) -> None:
    """End the process where a failure is its device's: nothing may be promised of what such a device holds."""
    if is_device_error(failure):
        end_process(failure)


def end_if_silent(context: RunContext) -> None:
    """End the process where its device does not compute any more; asked when a generation is over, for whatever reason."""
    if why := answers(context):
        end_process(why)


def memory_shortage(context: RunContext) -> control_pb2.MemoryShortage:
    """What was measured when memory ran out, in bytes; and give back what the allocator holds without need."""
    peak, limit = peak_of(context.device)
    forget_peak(context.device)
    limit = limit or context.job.placement.worker_memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return control_pb2.MemoryShortage(peak_bytes=peak, limit_bytes=limit)
