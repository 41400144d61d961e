"""The exit reporter: reports a worker's end to the controller, since a killed process cannot.

It is a fork of the preload process. The preload process, as the workers' parent, sees their ends first, also if the agent or the
pod was killed, and writes them to a pipe as JSON lines. The exit reporter reads the pipe and keeps a connection to the controller
open, so that the controller knows of an end a few milliseconds later. It ends when the pipe is closed.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Mapping

import grpc

from frostline_contract.exit_codes import DEVICE
from frostline_proto.v1 import control_pb2, control_pb2_grpc
from frostline_rpc.channel import SharedChannel, open_channel
from frostline_rpc.current_text import current_text
from frostline_trainer.process.gpus import VISIBLE
from frostline_trainer.process.identity import worker_id_of
from frostline_trainer.process.plug import PLUG, plug_of

PATIENCE_SECONDS = 30.0
"""How long to retry while no controller answers: longer than a successor needs to start."""
RETRY_SECONDS = 0.1
CALL_SECONDS = 5.0
CHANNELS_MAX = 4
"""Limit of open connections: to the controllers of the newest runs, if several runs share a preload process."""
MEANINGS = {DEVICE: f"its device failed (exit code {DEVICE})"}
NEEDED = ("FROSTLINE_POD_UID", "FROSTLINE_WORKER_NONCE", "FROSTLINE_TOKEN", "FROSTLINE_CONTROLLER")


def line_of(env: Mapping[str, str], code: int | None) -> bytes:
    """The pipe's line for a worker with this environment that has started (None) or ended with `code`; empty without a controller
    to report to."""
    if not all(name in env for name in NEEDED):
        return b""
    kept = {name: env[name] for name in (*NEEDED, PLUG, "FROSTLINE_CUT", "FROSTLINE_NODE", VISIBLE) if name in env}
    return json.dumps({"env": kept, "code": code}).encode() + b"\n"


def serve(pipe: int) -> int:
    """Report the ends that come through the pipe, each in a thread of its own, until it is closed. Returns the exit status."""
    reporter = ExitReporter()
    with os.fdopen(pipe, "rb") as lines:
        for line in lines:
            said = json.loads(line)
            body = reporter.connect if said["code"] is None else reporter.report
            threading.Thread(target=body, args=(said["env"], said["code"]), daemon=True).start()
    return 0


class ExitReporter:
    """Reports ends over channels that stay open, by (controller's address, token). Callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channels: dict[tuple[str, str], SharedChannel] = {}

    def connect(self, env: Mapping[str, str], code: None = None) -> bool:
        """Connect to the worker's controller ahead of its end. False if there is no controller yet."""
        plug_of(env)  # import the plug's module before it is needed
        try:
            with self._channel(env).use() as channel:
                grpc.channel_ready_future(channel).result(timeout=CALL_SECONDS)
        except (FileNotFoundError, ConnectionResetError, grpc.FutureTimeoutError):
            return False
        return True

    def report(self, env: Mapping[str, str], code: int, patience_seconds: float = PATIENCE_SECONDS) -> bool:
        """Report that a worker has ended with `code` (negative: a signal's number). False if no controller took the report.

        It gives up if the run is over: the file with the controller's address is gone then.
        """
        reason = f"its process ended: {signal.Signals(-code).name if code < 0 else MEANINGS.get(code, f'exit code {code}')}"
        request = control_pb2.LeaveRequest(
            worker_id=worker_id_of(env), reason=reason, ended=True, exit_code=code, node=env.get("FROSTLINE_NODE", ""),
            device_uuid=env.get(VISIBLE, ""),
        )  # fmt: skip
        deadline, plug = time.monotonic() + patience_seconds, plug_of(env)
        while time.monotonic() < deadline:
            try:
                if not plug.silences(env):
                    with self._channel(env).use() as channel:
                        control_pb2_grpc.ControlStub(channel).Leave(request, timeout=CALL_SECONDS)
                    return True
            except FileNotFoundError:
                return False
            except (grpc.RpcError, ConnectionResetError) as error:  # the channel may have been closed in favour of a newer one
                code_of_error = error.code() if isinstance(error, grpc.RpcError) else grpc.StatusCode.UNAVAILABLE
                if code_of_error not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    return False  # the controller refuses the report: no retry
            time.sleep(RETRY_SECONDS)
        return False

    def _channel(self, env: Mapping[str, str]) -> SharedChannel:
        """A channel to the controller's current address. Raises FileNotFoundError if there is none."""
        key = (current_text(env["FROSTLINE_CONTROLLER"]), env["FROSTLINE_TOKEN"])
        with self._lock:
            if key not in self._channels:
                if len(self._channels) >= CHANNELS_MAX:
                    self._channels.pop(next(iter(self._channels))).retire()
                self._channels[key] = SharedChannel(open_channel(*key))
            return self._channels[key]
