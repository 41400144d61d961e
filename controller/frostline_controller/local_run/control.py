"""The client of the Control service: Status and Command, with the run's operator token."""

from pathlib import Path
from typing import Any

import grpc

from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import RESUMABLE, RunStatus
from frostline_controller.local_run.errors import CommandError, NoRun, NotWritten, UserMistake
from frostline_controller.local_run.run_lock import owner
from frostline_proto.v1 import control_pb2, control_pb2_grpc
from frostline_rpc.auth import OPERATOR, Tokens
from frostline_rpc.channel import error_text, open_channel

DEADLINE_SECONDS = 5.0


class OperatorClient:
    """Calls the controller of a run directory; looks its address up again after a move. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._address = ""
        self._channel: grpc.Channel | None = None

    def status(self, deadline_seconds: float = DEADLINE_SECONDS) -> control_pb2.StatusResponse:
        """Return the status of the run. Raises NoRun where no controller answers."""
        return self._call("Status", control_pb2.StatusRequest(), deadline_seconds)

    def command(self, kind: str, **fields: Any) -> str:
        """Send a command to the run; return the answer.

        Raises:
            NotWritten: no answer came in time; the command may still be carried out.
            NoRun: no controller answers.
            UserMistake: a value is impossible.
            CommandError: the command is refused.
        """
        return self._call("Command", control_pb2.CommandRequest(kind=kind, **fields), DEADLINE_SECONDS).answer

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _call(self, method: str, request: Any, deadline_seconds: float) -> Any:
        stub = control_pb2_grpc.ControlStub(self._connect())
        try:
            return getattr(stub, method)(request, timeout=deadline_seconds)
        except grpc.RpcError as error:
            if method == "Command" and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise NotWritten(
                    self._folder,
                    f"{self._folder}: the command is not on disk yet after {deadline_seconds:g} s, it may still be carried out; "
                    f"see `frostline status {self._folder}` and the controller's log",
                ) from None
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise NoRun(f"{self._folder}: no controller answers at {self._address}; {_advice(self._folder)}") from None
            if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
                raise UserMistake(error.details()) from None
            refused = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            raise CommandError(error.details() if refused else error_text(error)) from None

    def _connect(self) -> grpc.Channel:
        places = RunDirectory(self._folder)
        address_file, tokens_file = places.controller_address, places.tokens
        if not address_file.exists() or not tokens_file.exists():
            raise NoRun(f"{self._folder}: no controller has been started here; {_advice(self._folder)}")
        address = address_file.read_text().strip()
        if self._channel is None or address != self._address:
            self.close()
            self._address = address
            self._channel = open_channel(address, Tokens.read(tokens_file).by_role[OPERATOR])
        return self._channel


def _advice(folder: Path) -> str:
    status = RunDirectory(folder).ended_as()
    if found := owner(folder):
        return f"`frostline` ({found}) still runs it: its controller is starting, or stands still; wait, or stop that process"
    if status in ("", RunStatus.SUSPENDED):
        return f"start it again with `frostline resume {folder}`"
    if status in RESUMABLE:
        return f"the run has ended ({status}); `frostline resume {folder}` goes on from its newest checkpoint"
    return f"the run has ended ({status})"
