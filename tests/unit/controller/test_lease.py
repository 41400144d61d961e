"""The Lease's own clock, without an API server (tests/cluster has the rest)."""

import copy
import threading
import time
from typing import Any

import pytest

from frostline_controller.cluster.kubernetes.lease import LeaderLease, LeaseTimes


class OneLease:
    """The part of an API that the Lease needs: one object that nobody else writes."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {"metadata": {"resourceVersion": "1"}, "spec": {}}

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
