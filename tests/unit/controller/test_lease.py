"""The Lease's own clock, without an API server (tests/cluster has the rest)."""

import copy
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client

from frostline_controller.cluster.kubernetes.api import Api
from frostline_controller.cluster.kubernetes.lease import LeaderLease, LeaseTimes


class OneLease:
    """The part of an API that the Lease needs: one object that nobody else writes."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {"metadata": {"resourceVersion": "1"}, "spec": {}}

    def within(self, seconds: float) -> "OneLease":
        return self

    def get(self, path: str) -> dict[str, Any]:
        return copy.deepcopy(self.found)

    def replace(self, path: str, content: dict[str, Any]) -> None:
        version = str(int(self.found["metadata"]["resourceVersion"]) + 1)
        self.found = {**content, "metadata": {"resourceVersion": version}}


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no clock that counts suspended time")
def test_a_machine_that_was_suspended_knows_that_its_lease_has_run_out(monkeypatch: pytest.MonkeyPatch) -> None:
    boot = [1000.0]
    monkeypatch.setattr(time, "clock_gettime", lambda clock: boot[0] if clock == time.CLOCK_BOOTTIME else time.monotonic())
    lost = threading.Event()
    lease = LeaderLease(OneLease(), "default", "run-controller", "me/1", LeaseTimes(15.0, 10.0, 2.0), on_lost=lost.set)
    assert lease.acquire() and lease.leads()
    boot[0] += 60.0  # nothing ran meanwhile, and no other clock went on
    assert not lease.leads()
    assert lost.wait(60.0)
    lease.release()


class HangsOnce(BaseHTTPRequestHandler):
    """An API server with one Lease that takes one request and answers it only when the test ends."""

    lease = OneLease()
    hangs = threading.Event()
    ends = threading.Event()

    def do_GET(self) -> None:
        if self.hangs.is_set():
            self.hangs.clear()
            self.ends.wait(60.0)
        self._answer()

    def do_PUT(self) -> None:
        self.lease.replace("", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer()

    def _answer(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(self.lease.found).encode())

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


def test_a_request_that_hangs_costs_a_leader_no_lease() -> None:
    """One of several API servers has just gone: the next try reaches another, and comes before the leader's time is over."""
    lost, times = threading.Event(), LeaseTimes(18.0, 12.0, 1.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), HangsOnce) as server:
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{server.server_port}"
        lease = LeaderLease(Api(configuration), "default", "run-controller", "me/1", times, on_lost=lost.set)
        try:
            assert lease.acquire()
            HangsOnce.hangs.set()
            assert not lost.wait(times.renew_deadline + 2.0) and lease.leads()
            assert not HangsOnce.hangs.is_set(), "a request has hung"
        finally:
            HangsOnce.ends.set()
            lease.release()
            server.shutdown()
