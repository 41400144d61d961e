"""Leader election on a real API server: one controller leads, and stops before another may start."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from frostline_controller.cluster.kubernetes.api import Api
from frostline_controller.cluster.kubernetes.lease import LeaderLease, LeaseTimes
from tests.cluster.cluster import ROOT, Cluster
from tests.cluster.controller_account import CONTROLLER, grant, in_cluster_api, lease
from tests.cluster.namespaces import WithNamespaces
from tests.cluster.waiting import stays
from tests.cluster.workloads import path_of

TIMES = LeaseTimes(duration=12.0, renew_deadline=10.0, retry=1.0)
LATE_SECONDS = 5.0
"""The seconds that a busy machine may add."""

HOLDER = """
import sys, time
from frostline_controller.cluster.kubernetes.api import Api
from frostline_controller.cluster.kubernetes.lease import LeaderLease, LeaseTimes
times = LeaseTimes(*map(float, sys.argv[3:]))
lease = LeaderLease(Api.in_cluster(), sys.argv[1], sys.argv[2], "process", times, lambda: None)
lease.acquire()
print("leads", flush=True)
time.sleep(600)
"""


@pytest.fixture
def api(api_server: WithNamespaces, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Api:
    grant(api_server, namespace)
    api_server.rest.create(path_of(namespace, "leases"), lease())
    return in_cluster_api(api_server, namespace, tmp_path / "account", monkeypatch)


@pytest.fixture
def candidate(api: Api, namespace: str) -> Iterator[Callable[[str], LeaderLease]]:
    made: list[LeaderLease] = []

    def make(identity: str, on_lost: Callable[[], None] = lambda: None) -> LeaderLease:
        made.append(LeaderLease(api, namespace, CONTROLLER, identity, TIMES, on_lost))
        return made[-1]

    yield make
    for one in made:
        one.release()


def test_one_leads_renews_and_hands_over_at_once(
    candidate: Callable[[str], LeaderLease], api_server: WithNamespaces, namespace: str
) -> None:
    first, second = candidate("first"), candidate("second")
    assert first.acquire() and first.leads()
    waiting = threading.Thread(target=second.acquire)
    waiting.start()
    assert stays(lambda: first.leads() and not second.leads(), TIMES.duration + 1.0), "renewed, so nobody else may"
    started = time.monotonic()
    first.release()
    assert not first.leads()
    waiting.join(LATE_SECONDS)
    assert second.leads() and time.monotonic() - started < TIMES.duration - 1.0, "it need not wait for the Lease's end"
    spec = api_server.rest.get(path_of(namespace, "leases", CONTROLLER))["spec"]
    assert spec["holderIdentity"] == "second" and spec["leaseTransitions"] == 2


def test_a_killed_leader_is_followed_within_the_duration(
    candidate: Callable[[str], LeaderLease], namespace: str, tmp_path: Path
) -> None:
    """The leader is killed, so that it does not release the Lease."""
    path = os.pathsep.join(str(ROOT / one) for one in ("proto", "proto/gen", "controller"))
    env = {**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    times = [str(seconds) for seconds in (TIMES.duration, TIMES.renew_deadline, TIMES.retry)]
    command = [sys.executable, "-c", HOLDER, namespace, CONTROLLER, *times]
    with subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "leads\n"
            second = candidate("second")
            waiting = threading.Thread(target=second.acquire)
            waiting.start()
            assert stays(lambda: not second.leads(), TIMES.duration), "it renews"
        finally:
            process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    waiting.join(TIMES.duration + LATE_SECONDS)
    took = time.monotonic() - killed
    assert second.leads() and took < TIMES.duration + LATE_SECONDS


def test_a_leader_that_cannot_renew_stops_before_another_may_start(
    candidate: Callable[..., LeaderLease], cluster: Cluster
) -> None:
    """The API server freezes during a renewal: calls hang, but the leader's time ends all the same."""
    lost = threading.Event()
    leader = candidate("first", lost.set)
    assert leader.acquire()
    cluster.plane.freeze_api_server(True)
    try:
        in_time = lost.wait(TIMES.duration)
        assert not leader.leads(), "its time is over before another's may begin"
        assert in_time or lost.wait(LATE_SECONDS), "its process ends, on a busy machine a moment later"
    finally:
        cluster.plane.freeze_api_server(False)
    assert stays(lambda: not leader.leads(), 3.0), (
        "who has stopped does not start again by itself, even if a late renewal succeeds"
    )


def test_a_leader_whose_lease_is_taken_stops(
    candidate: Callable[..., LeaderLease], api_server: WithNamespaces, namespace: str
) -> None:
    lost = threading.Event()
    leader = candidate("first", lost.set)
    assert leader.acquire()
    api_server.rest.merge(path_of(namespace, "leases", CONTROLLER), {"spec": {"holderIdentity": "somebody"}})
    assert lost.wait(TIMES.duration + LATE_SECONDS) and not leader.leads()


def test_who_waits_can_be_told_to_stop(candidate: Callable[[str], LeaderLease]) -> None:
    first, second = candidate("first"), candidate("second")
    assert first.acquire()
    got: list[bool] = []
    waiting = threading.Thread(target=lambda: got.append(second.acquire()))
    waiting.start()
    second.release()
    waiting.join(LATE_SECONDS)
    assert got == [False] and first.leads()


def test_on_lost_may_release(candidate: Callable[..., LeaderLease], api_server: WithNamespaces, namespace: str) -> None:
    """The release comes from the thread that calls on_lost."""
    done = threading.Event()

    def end() -> None:
        leader.release()
        done.set()

    leader = candidate("first", end)
    assert leader.acquire()
    api_server.rest.merge(path_of(namespace, "leases", CONTROLLER), {"spec": {"holderIdentity": "somebody"}})
    assert done.wait(TIMES.duration + LATE_SECONDS)


def test_times_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="renew deadline 15"):
        LeaseTimes(duration=15.0, renew_deadline=15.0)
