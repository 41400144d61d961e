"""The local cluster with real child processes: pods are made, restarted, replaced, scaled, and nothing is left running."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from frostline_contract.durable_files import replace_durably
from frostline_contract.job import load_job
from frostline_controller.cluster.local import backend as local_backend
from frostline_controller.cluster.local import service_process
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.cluster.local.child import python_module
from frostline_controller.cluster.local.cluster import LocalCluster
from frostline_controller.cluster.local.service_process import Service, controller_service
from tests.integration.scripted_worker import WAIT_SECONDS, make_run, wait_for

ROOT = Path(__file__).resolve().parents[2]
ENV = {"FROSTLINE_WORKER_MODULE": "tests.integration.scripted_main", "PYTHONPATH": str(ROOT)}
RESPAWNED_SECONDS = 2.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., LocalCluster]]:
    made: list[LocalCluster] = []

    def make(script: str, replicas: int, **sections: object) -> LocalCluster:
        folder = make_run(tmp_path / "run", **sections)
        made.append(LocalCluster(folder, load_job(folder / "job.yaml"), env={**ENV, "FROSTLINE_SCRIPT": script}))
        made[-1].backend.scale(replicas)
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop(1.0)


def workers(cluster: LocalCluster, name: str) -> list[dict[str, str]]:
    """Return the messages that a pod's workers wrote when they started; only whole lines, since the last may be incomplete."""
    log = cluster.run_dir / "logs" / f"{name}.log"
    lines = log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []
    return [dict(part.split("=", 1) for part in line.split()[1:]) for line in lines if line.startswith("worker pod=")]


def pods(cluster: LocalCluster) -> dict[str, str]:
    """Return {name: uid} of the running pods."""
    return {pod.name: pod.uid for pod in cluster.backend.read().pods if pod.phase == "Running"}


def test_scales_up_and_down_by_ordinal_and_leaves_nothing(cluster: Callable[..., LocalCluster]) -> None:
    made = cluster("wait", 3)
    wait_for(lambda: all(workers(made, f"trainer-{i}") for i in range(3)), "three workers")
    assert sorted(pods(made)) == ["trainer-0", "trainer-1", "trainer-2"]
    made.backend.scale(1)
    wait_for(lambda: sorted(pods(made)) == ["trainer-0"], "the highest ordinals are gone")
    assert "worker drained" in (made.run_dir / "logs" / "trainer-2.log").read_text()
    process = int(workers(made, "trainer-0")[0]["process"])
    agent = made.process_id("trainer-0")
    made.stop(2.0)
    wait_for(lambda: not psutil.pid_exists(process) and not psutil.pid_exists(agent), "nothing left")
    assert made.backend.read().pods == []


def test_killed_worker_is_respawned_in_the_same_pod(cluster: Callable[..., LocalCluster]) -> None:
    """A machine's other processes only add to the time: the fastest of three respawns counts."""
    made = cluster("wait", 1)
    known = [wait_for(lambda: workers(made, "trainer-0"), "a worker")[0]]
    took: list[float] = []
    while not took or (min(took) >= RESPAWNED_SECONDS and len(took) < 3):
        killed = time.monotonic()
        os.kill(int(known[-1]["process"]), signal.SIGKILL)
        known.append(wait_for(lambda: workers(made, "trainer-0")[len(known) :], "another worker")[0])
        took.append(time.monotonic() - killed)
    assert {worker["uid"] for worker in known} == {known[0]["uid"]}
    assert len({worker["process"] for worker in known}) == len(known)
    assert min(took) < RESPAWNED_SECONDS, took


def test_killed_agent_is_restarted_and_its_worker_does_not_survive_it(cluster: Callable[..., LocalCluster]) -> None:
    made = cluster("wait", 1)
    first = wait_for(lambda: workers(made, "trainer-0"), "a worker")[0]
    os.kill(made.process_id("trainer-0"), signal.SIGKILL)
    second = wait_for(lambda: workers(made, "trainer-0")[1:], "another worker")[0]
    assert second["uid"] == first["uid"]
    wait_for(lambda: not psutil.pid_exists(int(first["process"])), "the first worker is gone")


def test_deleted_pod_comes_back_under_its_name_with_a_new_uid(cluster: Callable[..., LocalCluster]) -> None:
    made = cluster("stubborn", 2)
    wait_for(lambda: all(workers(made, f"trainer-{i}") for i in range(2)), "two workers")
    before = pods(made)
    LocalBackend(made.run_dir / "cluster").delete_pod("trainer-1", 0.0)
    after = wait_for(lambda: (p := pods(made)).get("trainer-1", before["trainer-1"]) != before["trainer-1"] and p, "a new pod")
    assert after["trainer-0"] == before["trainer-0"]
    again = wait_for(lambda: workers(made, "trainer-1")[1:], "its worker")[0]
    assert again["uid"] == after["trainer-1"]
    wait_for(lambda: not psutil.pid_exists(int(workers(made, "trainer-1")[0]["process"])), "the deleted pod's worker is gone")


def test_pod_that_ended_well_is_started_again_while_it_is_wanted(cluster: Callable[..., LocalCluster]) -> None:
    made = cluster("exit 0", 1)
    first = wait_for(lambda: workers(made, "trainer-0"), "a worker")[0]
    again = wait_for(lambda: workers(made, "trainer-0")[1:], "another worker")[0]
    assert again["uid"] == first["uid"]
    assert float(again["at"]) - float(first["at"]) >= 2.5
    made.backend.scale(0)
    wait_for(lambda: made.backend.read().pods == [], "no pods")
    assert made.failure is None


@pytest.mark.parametrize(("script", "code", "tries"), [("exit 2", 2, 1), ("exit 3", 3, 2)])
def test_users_mistake_and_a_second_refusal_are_final(
    cluster: Callable[..., LocalCluster], script: str, code: int, tries: int
) -> None:
    made = cluster(script, 1)
    failure = wait_for(lambda: made.failure, "the failure")
    assert failure.code == code
    assert failure.user_mistake == (code == 2)
    assert len(workers(made, "trainer-0")) == tries


def test_crash_loop_has_a_budget_and_ends_with_the_workers_words(tmp_path: Path) -> None:
    env = {**os.environ, **ENV, "FROSTLINE_SCRIPT": "raise", "FROSTLINE_LOG": str(tmp_path / "log"), "FROSTLINE_POD_NAME": "p"}
    code = "import frostline_trainer.process.agent as agent, sys; agent.RESPAWN_SECONDS_MAX = 0.05; agent.CRASHES_MAX = 3\n"
    code += "sys.exit(agent.main())"
    argv = [sys.executable, "-c", code]
    agent = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert agent.returncode == 1
    assert "crashed 3 times in a row" in agent.stderr
    assert (tmp_path / "log").read_text().count("RuntimeError: planted") == 4


def test_agent_kills_what_outlives_its_grace(tmp_path: Path) -> None:
    log = tmp_path / "log"
    env = {**os.environ, **ENV, "FROSTLINE_SCRIPT": "stubborn", "FROSTLINE_LOG": str(log), "FROSTLINE_GRACE_SECONDS": "0.3"}
    agent = subprocess.Popen([sys.executable, "-m", "frostline_trainer.process.agent"], env=env, stderr=subprocess.DEVNULL)
    wait_for(lambda: log.exists() and "worker pod" in log.read_text(), "the worker")
    process = int(log.read_text().split("process=")[1].split()[0])
    agent.terminate()
    assert agent.wait(WAIT_SECONDS) == 0
    wait_for(lambda: not psutil.pid_exists(process), "the worker is gone")


def test_forked_worker_can_use_grpc_and_gloo(tmp_path: Path, short_folder: Path) -> None:
    log = tmp_path / "log"
    env = {**os.environ, **ENV, "FROSTLINE_SCRIPT": "gloo", "FROSTLINE_LOG": str(log), "OMP_NUM_THREADS": "1"}
    preload = tmp_path / "warm.py"
    preload.write_text(
        "import sys, grpc, torch\nimport frostline_trainer.process.preload as preload\n"
        "torch.set_num_threads(1)\nsys.exit(preload.main())\n"
    )
    path = str(short_folder / "preload.sock")
    warm = subprocess.Popen([sys.executable, str(preload), path], env=env)
    try:
        agent = subprocess.run([sys.executable, "-m", "frostline_trainer.process.agent"], env={**env, "FROSTLINE_PRELOAD": path},
                               capture_output=True, timeout=WAIT_SECONDS, check=False)  # fmt: skip
        assert agent.returncode == 0
        assert "grpc answered UNAVAILABLE" in log.read_text()
        assert "gloo sum 3.0" in log.read_text()
    finally:
        warm.terminate()
        assert warm.wait(WAIT_SECONDS) == 0


def test_agent_imports_no_torch() -> None:
    code = "import sys, frostline_trainer.process.agent; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


def test_killed_controller_is_started_again_with_a_new_incarnation(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    cluster = LocalCluster(
        folder, load_job(folder / "job.yaml"), [controller_service(folder)], env={**ENV, "FROSTLINE_SCRIPT": "wait"}
    )
    cluster.start()
    try:
        wait_for(lambda: len(pods(cluster)) == 2, "the controller asks for two pods")
        first = cluster.process_id("controller")
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: cluster.process_id("controller") not in (None, first), "another controller")
        fence = "frostline.io/generation"
        wait_for(lambda: cluster.backend.read().annotations[fence] == "2.0", "a new incarnation")
        assert len(pods(cluster)) == 2
    finally:
        cluster.stop(1.0)
    assert cluster.process_id("controller") is None


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let services be started again at once."""
    monkeypatch.setattr(service_process, "RESTART_SECONDS_MAX", 0.02)


def services_of(folder: Path, *services: Service) -> LocalCluster:
    """Return a local cluster with these services alone."""
    return LocalCluster(folder, load_job(folder / "job.yaml"), services, env={"FROSTLINE_PRELOAD": "pods"})


def saying(text: str, code: int) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", f"print({text!r}); raise SystemExit({code})")


def test_a_service_that_cannot_start_is_given_up_by_name(tmp_path: Path, hasty: None) -> None:
    made = services_of(make_run(tmp_path / "run"), Service("controller", saying("no such module", 1)))
    made.start()
    try:
        failure = wait_for(lambda: made.failure, "the failure")
        assert (failure.code, failure.user_mistake, failure.leaves_no_result) == (1, False, True)
        assert failure.message.startswith("controller ended with code 1 8 times in a row and is given up:\n")
        assert "no such module" in failure.message
        notes = made.notes()
        assert [note.split(" times")[0] for note in notes] == [f"controller ended with code 1, {often}" for often in range(2, 8)]
        assert made.notes() == [], "each is told once"
        log = made.run_dir / "logs" / "controller.log"
        assert log.read_text().count("no such module") == 8
    finally:
        made.stop(1.0)


@pytest.mark.parametrize("code", [1, 2])
def test_a_cache_server_that_cannot_start_ends_nothing(code: int, tmp_path: Path, hasty: None) -> None:
    argv = saying("no cache", code)
    made = services_of(make_run(tmp_path / "run"), Service("cache-server", argv, needed=False))
    made.start()
    try:
        log = made.run_dir / "logs" / "cache-server.log"
        often = 10 if code == 1 else 1
        wait_for(lambda: log.exists() and log.read_text().count("no cache") >= often, f"{often} starts")
        said = wait_for(made.notes, "a word about it")
        assert made.failure is None and made.error is None
        assert said[0].startswith(f"cache-server ended with code {code}")
        assert ("the run goes on without it" in said[0]) == (code == 2)
    finally:
        made.stop(1.0)


def test_what_a_full_disk_kept_from_being_done_is_done_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_run(tmp_path / "run")
    full = [True]

    def replace(path: Path, text: str) -> None:
        if full[0] and path.name == "statefulset.json":
            raise OSError(28, "No space left on device")
        replace_durably(path, text)

    monkeypatch.setattr(local_backend, "replace_durably", lambda path, text: replace_durably(path, text))
    made = LocalCluster(folder, load_job(folder / "job.yaml"), env={**ENV, "FROSTLINE_SCRIPT": "wait"})
    made.backend.scale(1)
    monkeypatch.setattr(local_backend, "replace_durably", replace)
    made.start()
    try:
        wait_for(lambda: workers(made, "trainer-0"), "a worker, which nobody could write down")
        assert wait_for(made.notes, "a word about it") == ["trying again until this works: [Errno 28] No space left on device"]
        assert pods(made) == {}
        full[0] = False
        wait_for(lambda: list(pods(made)) == ["trainer-0"], "the pod is written down")
        assert made.error is None
        assert len(workers(made, "trainer-0")) == 1, "it was started once"
    finally:
        made.stop(1.0)


def test_children_work_in_the_run_directory_and_import_nothing_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, here = make_run(tmp_path / "run"), tmp_path / "here"
    (here / "library").mkdir(parents=True)
    monkeypatch.chdir(here)
    for place in (here, folder):
        (place / "grpc.py").write_text("raise ImportError('a file of the working directory')")
    (here / "library" / "named_by_user.py").write_text(
        "import grpc, os, subprocess, sys\nprint(os.getcwd(), __file__, flush=True)\n"
        "subprocess.run([sys.executable, '-c', 'import grpc; print(\"and its child\")'], check=True)\n"
    )
    made = LocalCluster(
        folder,
        load_job(folder / "job.yaml"),
        [Service("child", python_module("named_by_user"))],
        env={"FROSTLINE_PRELOAD": "pods", "PYTHONPATH": f"library{os.pathsep}"},
    )
    made.start()
    try:
        log = folder / "logs" / "child.log"
        text = wait_for(lambda: log.exists() and "and its child" in log.read_text() and log.read_text(), "the child's words")
        assert text.splitlines() == [f"{folder} {here}/library/named_by_user.py", "and its child"]
    finally:
        made.stop(1.0)


def test_nothing_survives_a_killed_cluster(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom frostline_contract.job import load_job\n"
        "from frostline_controller.cluster.local.cluster import LocalCluster\n"
        "folder = Path(sys.argv[1])\ncluster = LocalCluster(folder, load_job(folder / 'job.yaml'))\n"
        "cluster.backend.scale(1)\ncluster.start()\ntime.sleep(60)\n"
    )
    env = {**os.environ, **ENV, "FROSTLINE_SCRIPT": "stubborn"}
    owner = subprocess.Popen([sys.executable, "-c", code, str(folder)], env=env)
    log = folder / "logs" / "trainer-0.log"
    wait_for(lambda: log.exists() and "worker pod" in log.read_text(), "the worker")
    children: list[psutil.Process] = []

    def all_are_there() -> bool:
        children[:] = psutil.Process(owner.pid).children(recursive=True)
        return len(children) == 4

    wait_for(all_are_there, "agent, preload, worker and the exit reporter, in whatever order they begin")
    owner.kill()
    owner.wait()
    _, alive = psutil.wait_procs(children, timeout=WAIT_SECONDS)
    assert alive == []
    assert json.loads((folder / "cluster" / "statefulset.json").read_text())["spec"]["replicas"] == 1
