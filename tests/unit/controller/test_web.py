"""The leader's pages: whoever may reach them can keep neither it nor its memory busy."""

import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from frostline_controller.service import drawing, web
from frostline_controller.service.drawing import NotDrawn, Reports
from frostline_controller.service.web import WebServer
from tests.unit.controller.synthetic_run import write_run


@pytest.fixture
def reports(tmp_path: Path) -> Reports:
    return Reports(write_run(tmp_path / "digits"))


@pytest.fixture
def drawings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that gets a line for each process that draws."""
    log, python = tmp_path / "drawings", tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho drawn >> {log}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(drawing.sys, "executable", str(python))
    return log


def test_one_report_is_drawn_at_a_time_and_kept_for_a_while(reports: Reports, drawings: Path) -> None:
    answers: list[bytes | NotDrawn] = []

    def ask() -> None:
        try:
            answers.append(reports.page())
        except NotDrawn as busy:
            answers.append(busy)

    asking = [threading.Thread(target=ask) for _ in range(8)]
    for one in asking:
        one.start()
    for one in asking:
        one.join(60)
    drawn = [answer for answer in answers if isinstance(answer, bytes)]
    assert len(answers) == 8 and len(drawn) >= 1
    assert all(answer.busy for answer in answers if isinstance(answer, NotDrawn))
    assert b"<h1>digits" in drawn[0]
    assert reports.page() == drawn[0]
    assert drawings.read_text().split() == ["drawn"]


def test_a_report_that_takes_too_much_memory_or_time_is_refused(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "DRAW_BYTES_MAX", 4 << 20)
    with pytest.raises(NotDrawn) as caught:
        reports.page()
    assert not caught.value.busy
    monkeypatch.setattr(drawing, "DRAW_BYTES_MAX", 1 << 30)
    monkeypatch.setattr(drawing, "DRAW_SECONDS", 0.01)
    with pytest.raises(NotDrawn, match="not made within"):
        reports.page()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    monkeypatch.setattr(web, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(web, "REQUEST_SECONDS", 0.5)
    server = WebServer("127.0.0.1", 0)
    yield server
    server.close()


def metrics_of(server: WebServer) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=5) as answer:
        return answer.read()


def test_connections_are_bounded_and_slow_ones_are_cut_off(server: WebServer) -> None:
    assert b"frostline_leading" in metrics_of(server)
    time.sleep(0.2)  # its place is free a moment after its answer
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(3)]
    for one in idle:
        one.sendall(b"GET /metrics")
    time.sleep(0.2)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        metrics_of(server)
    stop = time.monotonic() + 3.0
    dripping = True
    while dripping and time.monotonic() < stop:  # a byte now and then keeps no connection open
        time.sleep(0.1)
        try:
            idle[0].sendall(b"/")
        except OSError:
            dripping = False
    assert not dripping
    for one in idle:
        one.close()
    assert b"frostline_leading" in metrics_of(server)
