"""Nodes of the local cluster that die or are cut off; worker processes that end, which is reported to the controller at once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from frostline_contract.job import load_job
from frostline_controller.cluster.backend import PodInfo
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.cluster.local.cluster import LocalCluster
from frostline_controller.cluster.local.service_process import Service
from frostline_proto.v1 import control_pb2 as pb
from frostline_proto.v1 import control_pb2_grpc
from frostline_trainer.process.exit_reporter import ExitReporter, line_of
from frostline_trainer.process.plug import PLANNED_FAULTS
from tests.integration.scripted_worker import make_run, wait_for
from tests.integration.test_local_cluster import ENV, workers

RECEIVED_SECONDS = 0.05
"""Seconds from a worker's SIGKILL until it is reported to the controller, on a machine with a free core."""
KILLS, KILLS_MAX = 3, 7
SLOWER_THAN_A_CALL = 5
"""Bound of that time on any machine, in seconds of `own_seconds`: it goes through two processes more."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., LocalCluster]]:
    made: list[LocalCluster] = []

    def make(replicas: int, pods_per_node: int = 1, services: tuple[Service, ...] = ()) -> LocalCluster:
        folder = make_run(tmp_path / "run", placement={"workers": 4, "pods_per_node": pods_per_node})
        env = {**ENV, "FROSTLINE_SCRIPT": "stubborn"}
        made.append(LocalCluster(folder, load_job(folder / "job.yaml"), services, env))
        made[-1].backend.scale(replicas)
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop(0.2)


def pods(cluster: LocalCluster) -> dict[str, PodInfo]:
    return {pod.name: pod for pod in LocalBackend(cluster.run_dir / "cluster").read().pods if pod.phase == "Running"}


def started(cluster: LocalCluster, count: int) -> list[dict[str, str]]:
    """Return the first worker of each pod, once all have reported that they run."""
    wait_for(lambda: all(workers(cluster, f"trainer-{i}") for i in range(count)), f"{count} workers")
    return [workers(cluster, f"trainer-{i}")[0] for i in range(count)]


def replaced(cluster: LocalCluster, before: dict[str, PodInfo], *names: str) -> dict[str, PodInfo]:
    """Return the pods, once other pods run under these names."""

    def look() -> dict[str, PodInfo] | None:
        now = pods(cluster)
        return now if all(name in now and now[name].uid != before[name].uid for name in names) else None

    return wait_for(look, f"{names} are replaced")


def test_pods_share_nodes_and_a_killed_node_takes_them_along(cluster: Callable[..., LocalCluster]) -> None:
    made = cluster(4, pods_per_node=2)
    first = started(made, 4)
    before = pods(made)
    assert [before[f"trainer-{i}"].node for i in range(4)] == ["node-0", "node-0", "node-1", "node-1"]
    LocalBackend(made.run_dir / "cluster").break_machine("kill_node", "trainer-3", 5.0)
    after = replaced(made, before, "trainer-2", "trainer-3")
    assert {after["trainer-2"].node, after["trainer-3"].node} == {"node-1-1"}
    assert (after["trainer-0"], after["trainer-1"]) == (before["trainer-0"], before["trainer-1"])
    wait_for(lambda: not any(psutil.pid_exists(int(one["process"])) for one in first[2:]), "the node's workers are gone")
    assert all(psutil.pid_exists(int(one["process"])) for one in first[:2])


def test_a_node_that_is_cut_off_is_replaced_while_its_processes_live_on(cluster: Callable[..., LocalCluster]) -> None:
    made = cluster(2)
    first = started(made, 2)
    before = pods(made)
    asked = time.time()
    made.backend.break_machine("cut_node", "trainer-1", 40.0)
    after = replaced(made, before, "trainer-1")
    assert after["trainer-1"].node == "node-1-1"
    again = wait_for(lambda: workers(made, "trainer-1")[1:], "the replacement's worker")[0]
    assert again["uid"] == after["trainer-1"].uid
    old = psutil.Process(int(first[1]["process"]))
    assert old.is_running(), "nobody tells the old worker"
    cut = made.run_dir / "cluster" / "cut"
    assert [file.name for file in cut.iterdir()] == [before["trainer-1"].uid]
    assert asked + 39.0 < float((cut / before["trainer-1"].uid).read_text()) < time.time() + 40.0
    agent = psutil.Process(made.process_id("trainer-1"))
    assert agent.environ()["FROSTLINE_CUT"] == str(cut / again["uid"]), "its own file, which does not exist"
    made.stop(0.2)
    wait_for(lambda: not any(psutil.pid_exists(one) for one in (old.pid, int(again["process"]))), "both workers are gone")


def test_another_loss_of_a_node_counts_on(cluster: Callable[..., LocalCluster]) -> None:
    made = cluster(1)
    started(made, 1)
    for number in (1, 2):
        before = pods(made)
        made.backend.break_machine("kill_node", "trainer-0", 1.0)
        assert replaced(made, before, "trainer-0")["trainer-0"].node == f"node-0-{number}"


def test_a_killed_cache_server_comes_back(cluster: Callable[..., LocalCluster]) -> None:
    made = cluster(0, services=(Service("cache-server", (sys.executable, "-c", "import time; time.sleep(60)")),))
    first = wait_for(lambda: made.process_id("cache-server"), "the service")
    made.backend.break_machine("kill_cache_server", "", 1.0)
    second = wait_for(lambda: (now := made.process_id("cache-server")) not in (None, first) and now, "another process")
    assert not psutil.pid_exists(first)
    assert psutil.pid_exists(second)


class Listener(control_pb2_grpc.ControlServicer):
    """A Control service that collects reports of ended workers."""

    def __init__(self) -> None:
        self.received: list[tuple[float, pb.LeaveRequest]] = []

    def Leave(self, request: pb.LeaveRequest, context: Any) -> pb.LeaveResponse:
        self.received.append((time.monotonic(), request))
        return pb.LeaveResponse()


@pytest.fixture
def listen() -> Iterator[Callable[[Path], Listener]]:
    """Return a function that starts a Control service and writes its address to a given run directory."""
    servers = []

    def start(run_dir: Path) -> Listener:
        listener, server = Listener(), grpc.server(ThreadPoolExecutor(2))
        control_pb2_grpc.add_ControlServicer_to_server(listener, server)
        (run_dir / "controller.address").write_text(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}\n")
        server.start()
        servers.append(server)
        return listener

    yield start
    for server in servers:
        server.stop(0).wait()


def own_seconds(listener: Listener, run_dir: Path) -> float:
    """Return the seconds from a plain child's SIGKILL until this process has told the listener."""
    with grpc.insecure_channel((run_dir / "controller.address").read_text().strip()) as channel:
        grpc.channel_ready_future(channel).result(timeout=30)
        child = subprocess.Popen(["sleep", "60"])
        killed = time.monotonic()
        child.kill()
        child.wait()
        control_pb2_grpc.ControlStub(channel).Leave(pb.LeaveRequest(worker_id="own"), timeout=30)
    at, said = listener.received.pop()
    assert said.worker_id == "own"
    return at - killed


def test_the_controller_hears_of_a_killed_worker_at_once(cluster: Callable[..., LocalCluster], listen: Any) -> None:
    """A machine's other processes only add to the time, so the fastest of a few counts, beside what a call takes here and now."""
    made = cluster(1)
    listener = listen(made.run_dir)
    delays: list[tuple[float, float]] = []
    while len(delays) < KILLS or (len(delays) < KILLS_MAX and not any(took < bound for took, bound in delays)):
        number = len(delays)
        now = wait_for(lambda: (found := workers(made, "trainer-0"))[number:] and found[number], "a worker")  # noqa: B023
        killed = time.monotonic()
        os.kill(int(now["process"]), signal.SIGKILL)
        wait_for(lambda: len(listener.received) > number, "its end is heard of")  # noqa: B023
        at, said = listener.received[number]
        assert said.ended
        assert said.worker_id.startswith(f"{now['uid']}/")
        assert said.reason == "its process ended: SIGKILL"
        delays.append((at - killed, max(RECEIVED_SECONDS, SLOWER_THAN_A_CALL * own_seconds(listener, made.run_dir))))
    assert len({said.worker_id for _, said in listener.received}) == len(delays), "each process has a nonce of its own"
    assert any(took < bound for took, bound in delays), delays


@pytest.mark.parametrize("how", ["agent", "pod", "node"])
def test_the_end_of_a_worker_whose_agent_died_is_told_too(cluster: Callable[..., LocalCluster], listen: Any, how: str) -> None:
    made = cluster(1)
    (first,) = started(made, 1)
    listener = listen(made.run_dir)
    if how == "agent":
        os.kill(made.process_id("trainer-0"), signal.SIGKILL)
    elif how == "pod":
        made.backend.delete_pod("trainer-0", 0.0)
    else:
        made.backend.break_machine("kill_node", "trainer-0", 1.0)
    _, said = wait_for(lambda: listener.received and listener.received[0], "its end is heard of")
    assert said.worker_id.startswith(f"{first['uid']}/")
    assert said.ended


def test_an_end_is_told_when_the_controller_is_back(tmp_path: Path, listen: Any) -> None:
    env = {"FROSTLINE_POD_UID": "uid", "FROSTLINE_WORKER_NONCE": "n", "FROSTLINE_TOKEN": "t",
           "FROSTLINE_CONTROLLER": str(tmp_path / "controller.address")}  # fmt: skip
    reporter = ExitReporter()
    assert not reporter.connect(env)
    assert not reporter.report(env, -9), "no run, nobody to tell"
    (tmp_path / "controller.address").write_text("127.0.0.1:9\n")
    with ThreadPoolExecutor(1) as pool:
        reporting = pool.submit(reporter.report, env, 70)
        time.sleep(0.3)
        assert not reporting.done()
        listener = listen(tmp_path)
        assert reporting.result(60) is True
    assert [(said.worker_id, said.reason) for _, said in listener.received] == [("uid/n", "its process ended: exit code 70")]
    assert reporter.connect(env)


def test_a_pod_that_is_cut_off_is_told_of_afterwards(tmp_path: Path, listen: Any) -> None:
    listener = listen(tmp_path)
    env = {"FROSTLINE_POD_UID": "uid", "FROSTLINE_WORKER_NONCE": "n", "FROSTLINE_TOKEN": "t",
           "FROSTLINE_CUT": str(tmp_path / "cut"), "FROSTLINE_PLUG": PLANNED_FAULTS,
           "FROSTLINE_CONTROLLER": str(tmp_path / "controller.address")}  # fmt: skip
    reporter = ExitReporter()
    assert reporter.connect(env), "as when the worker starts: what the plug imports may take longer than the cut"
    healed = time.monotonic() + 0.4
    (tmp_path / "cut").write_text(str(time.time() + 0.4))
    assert reporter.report(env, -9)
    ((at, _),) = listener.received
    assert at >= healed - 0.02


def test_more_runs_than_connections(tmp_path: Path, listen: Any) -> None:
    reporter, listeners = ExitReporter(), []
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        listeners.append(listen(folder))
        env = {"FROSTLINE_POD_UID": f"uid-{number}", "FROSTLINE_WORKER_NONCE": "n", "FROSTLINE_TOKEN": "t",
               "FROSTLINE_CONTROLLER": str(folder / "controller.address")}  # fmt: skip
        assert reporter.report(env, -9)
    assert [[said.worker_id for _, said in one.received] for one in listeners] == [[f"uid-{n}/n"] for n in range(6)]


def test_nobody_is_told_of_a_worker_without_a_run() -> None:
    assert line_of({"FROSTLINE_POD_UID": "u"}, -9) == b""


def test_a_worker_that_ends_by_itself_is_not_told_of(tmp_path: Path, listen: Any) -> None:
    listener = listen(tmp_path)
    env = {**os.environ, **ENV, "FROSTLINE_SCRIPT": "exit 2", "FROSTLINE_LOG": str(tmp_path / "log"), "FROSTLINE_POD_UID": "u",
           "FROSTLINE_TOKEN": "t", "FROSTLINE_CONTROLLER": str(tmp_path / "controller.address")}  # fmt: skip
    code = subprocess.run([sys.executable, "-m", "frostline_trainer.process.agent"], env=env, timeout=120, check=False).returncode
    assert code == 2
    assert listener.received == []
