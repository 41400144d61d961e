"""A device that failed or hangs ends its process with a code of its own; one out of memory is reported with figures."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from frostline_contract.exit_codes import DEVICE
from frostline_trainer.faults.of_worker import hang_device
from frostline_trainer.process.exit_reporter import line_of
from frostline_trainer.process.sick_device import answers, end_if_sick, end_if_silent, is_device_error, memory_shortage
from frostline_trainer.step.context import RunContext
from tests.exact_cases import Case, build_case
from tests.simulated_device import SimulatedDevice, device_error


@pytest.fixture(scope="module")
def context() -> RunContext:
    return build_case(Case("vit"))


def raised_from(cause: BaseException) -> RuntimeError:
    try:
        raise RuntimeError("the exchange failed") from cause
    except RuntimeError as error:
        return error


@pytest.mark.parametrize(
    ("failure", "sick"),
    [
        (device_error(), True),
        (raised_from(device_error()), True),
        (RuntimeError("gloo/transport/tcp: Connection closed by peer"), False),
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (raised_from(ConnectionError("gone")), False),
    ],
)
def test_a_devices_error_is_known_also_where_it_is_the_cause(failure: BaseException, sick: bool) -> None:
    assert is_device_error(failure) is sick
    if not sick:
        end_if_sick(failure)  # this process goes on


def test_a_device_is_asked_and_a_cpu_is_not(context: RunContext) -> None:
    assert answers(context) == ""
    context.device_clock = SimulatedDevice(looks=3)
    assert answers(context, 10) == ""
    context.device_clock = SimulatedDevice(errors={1: RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")})
    assert answers(context, 10) == "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"
    context.device_clock = SimulatedDevice(broken=device_error())
    assert "illegal memory access" in answers(context, 10)
    hang_device(context)
    assert answers(context, 0.1) == "it has not answered within 0.1 s"


@pytest.mark.parametrize("end", [end_if_sick, end_if_silent])
def test_the_process_ends_at_once_with_a_code_of_its_own(end: Callable[..., None]) -> None:
    script = f"""
import atexit, threading, torch
from frostline_trainer.process import sick_device
from tests.exact_cases import Case, build_case
from tests.simulated_device import SimulatedDevice, device_error
atexit.register(print, "cleaned up")
threading.Thread(target=threading.Event().wait).start()  # a thread that would keep an ordinary end waiting
context = build_case(Case("vit"))
context.device_clock = SimulatedDevice(broken=device_error())
sick_device.{end.__name__}({"device_error()" if end is end_if_sick else "context"})
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == DEVICE, ended.stderr
    assert "illegal memory access" in ended.stderr and "cleaned up" not in ended.stdout


def test_whoever_reaps_it_tells_which_device_it_had() -> None:
    env = {
        "FROSTLINE_POD_UID": "uid", "FROSTLINE_WORKER_NONCE": "n", "FROSTLINE_TOKEN": "t", "FROSTLINE_CONTROLLER": "c",
        "FROSTLINE_NODE": "node-3", "CUDA_VISIBLE_DEVICES": "GPU-7", "SECRET": "not told",
    }  # fmt: skip
    line = line_of(env, DEVICE)
    assert b'"FROSTLINE_NODE": "node-3"' in line and b'"CUDA_VISIBLE_DEVICES": "GPU-7"' in line and b"SECRET" not in line


def test_a_shortage_says_peak_and_limit(context: RunContext) -> None:
    shortage = memory_shortage(context)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 10**7 < shortage.peak_bytes < shortage.limit_bytes == machine
