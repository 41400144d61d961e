"""Tells the controller of a worker's end in its place: a process that was killed cannot.

The preload process, whose child the worker was, runs this in a fork of its own; nothing waits for it.
"""

import signal
import time
from collections.abc import Mapping
from pathlib import Path

import grpc

from frostline_proto.v1 import control_pb2, control_pb2_grpc
from frostline_rpc.channel import open_channel
from frostline_trainer.identity import worker_id_of
from frostline_trainer.partition import through_partition

PATIENCE_SECONDS = 30.0
"""How long a controller that is away is waited for: longer than its successor needs."""
RETRY_SECONDS = 0.1
CALL_SECONDS = 5.0
TOLD, UNHEARD = 0, 1


def tell_ended(env: Mapping[str, str], code: int, patience_seconds: float = PATIENCE_SECONDS) -> int:
    """Say that the worker of this environment has ended with `code` (negative: a signal's number). TOLD or UNHEARD.

    Ends early where the run is over: the file with the controller's address is gone then.
    """
    address_file = Path(env.get("FROSTLINE_CONTROLLER", ""))
    reason = f"its process ended: {signal.Signals(-code).name if code < 0 else f'exit code {code}'}"
    request = control_pb2.LeaveRequest(worker_id=worker_id_of(env), reason=reason, ended=True)
    deadline = time.monotonic() + patience_seconds
    while time.monotonic() < deadline and address_file.is_file():
        try:
            with through_partition(open_channel(address_file.read_text().strip(), env["FROSTLINE_TOKEN"])) as channel:
                control_pb2_grpc.ControlStub(channel).Leave(request, timeout=CALL_SECONDS)
                return TOLD
        except grpc.RpcError as error:
            if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return UNHEARD  # it will have nothing to do with us: that is an answer
        except FileNotFoundError:
            return UNHEARD
        time.sleep(RETRY_SECONDS)
    return UNHEARD
