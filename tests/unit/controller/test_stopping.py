"""A request to stop, against a controller that answers, has no disk to write to, or stands still."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from frostline_contract.run_directory import RunDirectory
from frostline_contract.run_status import RunStatus
from frostline_controller.local_run.control import OperatorClient
from frostline_controller.local_run.errors import NoRun
from frostline_controller.local_run.progress import Progress
from frostline_controller.local_run.stopping import StopRequest
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import control_pb2_grpc
from frostline_rpc.auth import Tokens

AT_LEISURE, SOON = 30.0, 0.3
"""Seconds that a call waits for the controller: for one that answers, on a busy machine too, and for one that does not."""


class Controller(control_pb2_grpc.ControlServicer):
    """A controller whose disk may be full, and which may stand still: then its calls are held until it is freed."""

    def __init__(self) -> None:
        self.writes, self.goes = threading.Event(), threading.Event()
        self.writes.set()
        self.goes.set()
        self.asked: list[str] = []

    def Command(self, request: pb.CommandRequest, context: Any) -> pb.CommandResponse:
        self.asked.append(request.kind)
        self.goes.wait(60)
        self.writes.wait(60)
        return pb.CommandResponse(answer="draining to a checkpoint")

    def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusResponse:
        self.goes.wait(60)
        return pb.StatusResponse(state=RunStatus.RUNNING)


class Stopping:
    """A request to stop a run, its controller, a clock, and the lines that were shown."""

    def __init__(self, folder: Path, controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.give_up_after(AT_LEISURE)
        self.folder, self.controller, self.now, self.said = folder, controller, 0.0, list[str]()
        self.client = OperatorClient(folder)
        self.request = StopRequest(self.client, self.said.append, lambda: self.now)

    def give_up_after(self, seconds: float) -> None:
        """Let calls wait so long for an answer."""
        self._monkeypatch.setattr("frostline_controller.local_run.control.DEADLINE_SECONDS", seconds)

    def after(self, seconds: float) -> float:
        """Ask again that much later; return for how long nobody has answered."""
        self.now += seconds
        self.request.advance(Progress(name="run", state=RunStatus.RUNNING))
        return self.request.silent_seconds


@pytest.fixture
def stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stopping]:
    server, controller = grpc.server(ThreadPoolExecutor(8)), Controller()
    control_pb2_grpc.add_ControlServicer_to_server(controller, server)
    places = RunDirectory(tmp_path)
    places.controller_address.write_text(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    Tokens.create().write(places.tokens)
    server.start()
    made = Stopping(tmp_path, controller, monkeypatch)
    yield made
    made.client.close()
    controller.writes.set()
    controller.goes.set()
    server.stop(0).wait()


def test_a_stop_is_sent_once(stopping: Stopping) -> None:
    assert [stopping.after(1.0), stopping.after(60.0)] == [0.0, 0.0]
    assert stopping.controller.asked == ["suspend"]
    assert stopping.said == ["stopping at a checkpoint; press Ctrl-C again to stop at once"]


def test_a_stop_that_cannot_be_written_waits_for_room_however_long(stopping: Stopping) -> None:
    stopping.controller.writes.clear()
    stopping.give_up_after(SOON)
    assert [stopping.after(1.0), stopping.after(60.0)] == [0.0, 0.0]
    waits = f"the stop waits until {stopping.folder} can be written: free some space there; press Ctrl-C again to stop at once"
    assert stopping.said == [waits]
    stopping.controller.writes.set()
    stopping.give_up_after(AT_LEISURE)
    assert stopping.after(60.0) == 0.0
    assert stopping.said == [waits, "stopping at a checkpoint; press Ctrl-C again to stop at once"]


def test_a_controller_that_stands_still_is_counted_from_its_last_answer(stopping: Stopping) -> None:
    stopping.controller.goes.clear()
    stopping.give_up_after(SOON)
    assert [stopping.after(1.0), stopping.after(5.0), stopping.after(6.0)] == [0.0, 5.0, 11.0]
    assert stopping.said == []
    stopping.controller.goes.set()
    stopping.give_up_after(AT_LEISURE)
    assert stopping.after(6.0) == 0.0
    assert stopping.said == ["stopping at a checkpoint; press Ctrl-C again to stop at once"]


def test_a_run_that_has_ended_is_not_asked(stopping: Stopping) -> None:
    stopping.request.advance(Progress(name="run", state=RunStatus.COMPLETED))
    assert (stopping.controller.asked, stopping.request.silent_seconds) == ([], 0.0)


@pytest.mark.parametrize(
    ("ended_as", "says"),
    [
        (RunStatus.SUSPENDED, "start it again with `frostline resume {folder}`"),
        (RunStatus.FAILED, "the run has ended (failed); `frostline resume {folder}` goes on from its newest checkpoint"),
        (RunStatus.CANCELLED, "the run has ended (cancelled); `frostline resume {folder}` goes on from its newest checkpoint"),
        (RunStatus.COMPLETED, "the run has ended (completed)"),
    ],
)
def test_a_command_to_a_run_that_has_ended_says_how_to_go_on(ended_as: RunStatus, says: str, tmp_path: Path) -> None:
    RunDirectory(tmp_path).result.write_text(json.dumps({"status": ended_as}))
    with pytest.raises(NoRun) as caught:
        OperatorClient(tmp_path).command("freeze", freeze_point=3)
    assert str(caught.value).endswith(f"no controller has been started here; {says.format(folder=tmp_path)}")


def test_a_command_that_is_not_on_disk_is_told_from_a_controller_that_is_gone(stopping: Stopping) -> None:
    stopping.controller.writes.clear()
    stopping.give_up_after(SOON)
    with pytest.raises(NoRun, match=r"the command is not on disk yet after 0\.3 s, it may still be carried out"):
        stopping.client.command("cancel")
    RunDirectory(stopping.folder).controller_address.write_text("127.0.0.1:1")
    with pytest.raises(NoRun, match=r"no controller answers at 127\.0\.0\.1:1"):
        stopping.client.command("cancel")
