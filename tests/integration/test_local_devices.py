"""The local cluster on a simulated machine with GPUs: every worker process is started with a GPU of its own."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from frostline_controller.cluster.local.cluster import LocalCluster
from tests.integration.scripted_worker import wait_for
from tests.integration.test_local_cluster import cluster, workers
from tests.simulated_gpus import EIGHT_GPUS, put_machine_on_path

__all__ = ["cluster"]


def test_a_pod_has_the_workers_that_the_job_says_each_with_a_gpu_of_its_own(
    cluster: Callable[..., LocalCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_machine_on_path(tmp_path, monkeypatch, EIGHT_GPUS)
    made = cluster("wait", 2, placement={"workers": 4, "workers_per_pod": 2})
    found = [wait_for(lambda i=i: (w := workers(made, f"trainer-{i}"))[1:] and w, "two workers") for i in range(2)]
    assert [sorted(worker["device"] for worker in pod) for pod in found] == [["GPU-0", "GPU-1"], ["GPU-2", "GPU-3"]]
    os.kill(int(found[1][0]["process"]), signal.SIGKILL)
    again = wait_for(lambda: workers(made, "trainer-1")[2:], "another worker")[0]
    assert again["device"] == found[1][0]["device"]


def test_a_pod_of_a_job_for_cpus_asks_for_no_gpu(
    cluster: Callable[..., LocalCluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_machine_on_path(tmp_path, monkeypatch, EIGHT_GPUS)
    made = cluster("wait", 1, placement={"workers": 9, "workers_per_pod": 9}, training={"device": "cpu"})
    found = wait_for(lambda: (w := workers(made, "trainer-0"))[8:] and w, "nine workers")
    assert {worker["device"] for worker in found} == {"-"}
