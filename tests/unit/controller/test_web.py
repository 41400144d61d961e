"""The leader's pages: their readers can exhaust neither its time nor its memory."""

import asyncio
import json
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from frostline_controller.serving import drawing, web
from frostline_controller.serving.drawing import NotDrawn, Reports
from frostline_controller.serving.web import WebServer
from tests.in_time import fastest_of_three, in_time
from tests.integration.scripted_worker import wait_for
from tests.unit.controller.synthetic_run import write_run
from tests.unit.controller.test_service_sizing import Stage


@pytest.fixture
def reports(tmp_path: Path) -> Reports:
    return Reports(write_run(tmp_path / "digits"))


@pytest.fixture
def drawings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that gets a line for each process that draws."""
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


class Served(NamedTuple):
    """A server, the event loop that it answers in, and its port."""

    server: WebServer
    loop: asyncio.AbstractEventLoop
    port: int


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server whose connections have half a second for a request, or the seconds that are the fixture's parameter."""
    monkeypatch.setattr(web, "CONNECTIONS_MAX", 3)
    monkeypatch.setattr(web, "REQUEST_SECONDS", getattr(request, "param", 0.5))
    monkeypatch.setattr(web, "DRAW_SECONDS", 1.0)
    loop = asyncio.new_event_loop()
    running = threading.Thread(target=loop.run_forever)
    running.start()
    server = WebServer()
    yield Served(server, loop, asyncio.run_coroutine_threadsafe(server.start("127.0.0.1", 0), loop).result(60))
    asyncio.run_coroutine_threadsafe(server.close(), loop).result(60)
    loop.call_soon_threadsafe(loop.stop)
    running.join(60)
    loop.close()


def page_of(served: Served, path: str = "/metrics", method: str = "GET") -> tuple[int, str, bytes]:
    """Return status, content type and content."""
    request = urllib.request.Request(f"http://127.0.0.1:{served.port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.headers["Content-Type"], refused.read()


def await_connections(served: Served, count: int) -> None:
    """Wait until the server has so many connections: a place is taken, or free again, a moment after a client's act."""
    http = served.server._server
    assert http is not None
    wait_for(lambda: len(http.connections) == count, f"{count} connections")


@pytest.mark.parametrize("served", [60.0], indirect=True, ids=["with time"])
def test_connections_are_bounded(served: Served) -> None:
    assert b"frostline_leading" in page_of(served)[2]
    await_connections(served, 0)
    idle = [socket.create_connection(("127.0.0.1", served.port), timeout=10) for _ in range(3)]
    for one in idle:
        one.sendall(b"GET /metrics")
    await_connections(served, 3)
    with pytest.raises((urllib.error.URLError, ConnectionError)):
        page_of(served)
    for one in idle:
        one.close()
    await_connections(served, 0)
    assert b"frostline_leading" in page_of(served)[2]


def test_slow_connections_are_cut_off(served: Served) -> None:
    slow = [socket.create_connection(("127.0.0.1", served.port), timeout=10) for _ in range(3)]
    stop = time.monotonic() + 60.0
    dripping = True
    while dripping and time.monotonic() < stop:  # a byte now and then keeps no connection open
        time.sleep(0.1)
        try:
            slow[0].sendall(b"/")
        except OSError:
            dripping = False
    assert not dripping
    await_connections(served, 0)  # nor do those that send nothing stay
    for one in slow:
        one.close()
    assert b"frostline_leading" in page_of(served)[2]


@fastest_of_three
def test_who_takes_no_answer_or_asks_for_ever_gives_the_place_back(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as asking:
        stop, answers, slowest, answered = time.monotonic() + 60.0, 0, 0.0, time.monotonic()
        while time.monotonic() < stop:  # each request comes in time
            slowest = max(slowest, time.monotonic() - answered)
            try:
                asking.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
                if not asking.recv(1 << 16):
                    break
            except OSError:
                break
            answers, answered = answers + 1, time.monotonic()
            time.sleep(0.1)
        assert time.monotonic() < stop
        in_time(slowest, web.REQUEST_SECONDS, "a request")
        assert answers > 3


def test_pages_of_a_standby_and_of_a_leader(served: Served, tmp_path: Path) -> None:
    status, kind, content = page_of(served, "/status")
    assert (status, kind) == (503, "application/json") and b"does not lead" in content
    assert page_of(served, "/metrics", "POST")[0] == 405

    async def lead() -> Stage:
        stage = Stage(tmp_path, placement={"workers": 2})
        served.server.lead(stage.facts, stage.store)
        return stage

    stage = asyncio.run_coroutine_threadsafe(lead(), served.loop).result(60)
    status, kind, content = page_of(served, "/metrics")
    assert (status, kind) == (200, web.METRICS_TYPE) and b"frostline_leading 1.0" in content
    status, kind, content = page_of(served, "/status?now")
    assert (status, kind, json.loads(content)["state"]) == (200, "application/json", "waiting")
    assert (page_of(served, "/result")[0], page_of(served, "/nowhere")[0]) == (404, 404)
    stage.store.places.result.write_text("{}")
    assert page_of(served, "/result")[2] == b"{}"
    stage.run.close()
