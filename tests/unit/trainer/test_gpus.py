"""Each worker gets a GPU of its own before it is forked; the error where there is none names field, value and remedy."""

import os
import signal
from pathlib import Path

import pytest

from frostline_trainer.process import worker
from frostline_trainer.process.agent import Agent
from frostline_trainer.process.gpus import NoDevice, assign_gpus, list_gpus, parse_listing, visible
from frostline_trainer.process.preload import check_untouched
from tests.simulated_gpus import EIGHT_GPUS, put_machine_on_path

A100 = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
MIG = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-7089d0f3-293f-58c9-8f8c-5ea666eedbde)
  MIG 3g.20gb     Device  1: (UUID: MIG-56c30729-347f-5dd6-8da0-c3cc59e969e0)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-90d4a7c5-2c3a-c0f4-2a36-7c5d2b5a9c11)
"""
OLD_MIG = """\
GPU 0: A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 1g.5gb Device 0: (UUID: MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/7/0)
"""


def test_a_listing_names_gpus_and_the_instances_of_those_that_are_cut() -> None:
    assert parse_listing(MIG) == [
        (A100, ["MIG-7089d0f3-293f-58c9-8f8c-5ea666eedbde", "MIG-56c30729-347f-5dd6-8da0-c3cc59e969e0"]),
        ("GPU-90d4a7c5-2c3a-c0f4-2a36-7c5d2b5a9c11", []),
    ]
    assert parse_listing(OLD_MIG) == [(A100, [f"MIG-{A100}/7/0"])]
    assert parse_listing("No devices found.\n") == []


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, ["MIG-1", "MIG-2", "GPU-bb", "GPU-bc"]),
        ("", []),
        ("1", ["GPU-bb"]),
        ("2, 1", ["GPU-bc", "GPU-bb"]),
        ("GPU-bc", ["GPU-bc"]),
        ("GPU-b", []),  # the entry names two GPUs
        ("1,7,2", ["GPU-bb"]),  # entries behind an unknown one do not count, as in CUDA
        ("-1", []),
        ("0", ["MIG-1"]),
        ("GPU-aa", ["MIG-1"]),
        ("MIG-2,2", ["MIG-2", "GPU-bc"]),
        ("1,1", ["GPU-bb"]),
    ],
)
def test_a_pods_own_restriction_holds(wanted: str | None, found: list[str]) -> None:
    assert visible([("GPU-aa", ["MIG-1", "MIG-2"]), ("GPU-bb", []), ("GPU-bc", [])], wanted) == found


def test_the_workers_of_a_pod_never_share_and_pods_of_one_machine_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_machine_on_path(tmp_path, monkeypatch, EIGHT_GPUS)
    taken = [assign_gpus("auto", ordinal, 3, os.environ) for ordinal in range(4)]
    assert all(len(set(pod)) == 3 for pod in taken)
    assert [uuid for pod in taken[:2] for uuid in pod] == [f"GPU-{index}" for index in range(6)]
    assert taken[2] == ["GPU-6", "GPU-7", "GPU-0"]


def test_more_workers_than_gpus_are_refused_with_field_value_and_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_machine_on_path(tmp_path, monkeypatch, MIG)
    assert len(assign_gpus("cuda", 0, 3, os.environ)) == 3
    with pytest.raises(NoDevice, match=r"placement.workers_per_pod is 4 and this pod sees 3 GPUs; set workers_per_pod to 3"):
        assign_gpus("cuda", 0, 4, os.environ)


def test_a_job_for_cpus_does_not_ask_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = put_machine_on_path(tmp_path, monkeypatch, EIGHT_GPUS)
    assert assign_gpus("cpu", 0, 64, os.environ) == []
    assert not calls.exists()


def test_the_driver_is_asked_for_all_gpus_whatever_the_pod_restricts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = put_machine_on_path(tmp_path, monkeypatch, EIGHT_GPUS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    assert assign_gpus("auto", 0, 2, os.environ) == ["GPU-5", "GPU-6"]
    assert calls.read_text() == "-L devices=all\n"


def test_without_a_driver_auto_is_the_cpu_and_cuda_is_a_mistake(tmp_path: Path) -> None:
    bare = {"PATH": str(tmp_path)}
    assert assign_gpus("auto", 0, 4, bare, tmp_path) == []
    with pytest.raises(NoDevice, match=r"training.device is cuda and this pod sees no GPU"):
        assign_gpus("cuda", 0, 1, bare, tmp_path)


def test_gpus_that_nobody_can_name_are_a_mistake_and_not_the_first_one_for_everybody(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    with pytest.raises(
        NoDevice, match=r"nvidia-smi is not on PATH, though .* has NVIDIA devices; set NVIDIA_DRIVER_CAPABILITIES"
    ):
        list_gpus({"PATH": str(tmp_path)}, tmp_path)


def test_a_driver_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_machine_on_path(tmp_path, monkeypatch, "Failed to initialize NVML: Driver/library version mismatch\n", code=18)
    with pytest.raises(NoDevice, match=r"ended with 18 and said 'Failed to initialize NVML.*mend this node's driver"):
        list_gpus(os.environ)


def test_an_agent_with_too_few_gpus_lets_each_worker_tell_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_machine_on_path(tmp_path, monkeypatch, MIG)
    agent = Agent({**os.environ, "FROSTLINE_WORKERS_PER_POD": "5", "FROSTLINE_PRELOAD": "unused"})
    devices = agent.assign_devices()
    assert len(devices) == 5 and all("workers_per_pod is 5" in one["FROSTLINE_DEVICE_MISTAKE"] for one in devices)
    monkeypatch.setenv("FROSTLINE_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("FROSTLINE_TOKEN", "any")
    monkeypatch.setenv("FROSTLINE_DEVICE_MISTAKE", "placement.workers_per_pod is 5")
    reported: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        worker, "_report_outcome", lambda identity, made, error, user_mistake: reported.append((error, user_mistake))
    )
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        assert worker.main() == 2
    finally:  # it blocks SIGTERM, and processes that later tests start would not end by it
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert reported == [("placement.workers_per_pod is 5", True)]


def test_the_preload_process_says_which_device_an_import_has_opened(tmp_path: Path) -> None:
    (tmp_path / "3").symlink_to("/dev/null")
    check_untouched(tmp_path)
    (tmp_path / "4").symlink_to("/dev/nvidia0")
    with pytest.raises(RuntimeError, match="has opened /dev/nvidia0 while it imported"):
        check_untouched(tmp_path)
