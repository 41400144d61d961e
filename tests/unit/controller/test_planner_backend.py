"""The plan's backend: NCCL only where it would work, and the same backend for all members."""

import pytest

from frostline_contract.device import DeviceFacts
from frostline_contract.job import JobError, parse_job
from frostline_controller.planner.backend import choose_backend


def gpus(*uuids: str, nccl: str = "2.29.7") -> list[DeviceFacts | None]:
    return [DeviceFacts(uuid=uuid, nccl=nccl) for uuid in uuids]


@pytest.mark.parametrize(
    ("devices", "backend", "why"),
    [
        (gpus("a"), "nccl", "each participant has a GPU of its own"),
        (gpus("a", "b", "c"), "nccl", "each participant has a GPU of its own"),
        (gpus("a", "b", "a"), "gloo", "2 participants share the GPU a"),
        (gpus("a", ""), "gloo", "1 of 2 participants have no GPU"),
        ([*gpus("a", "b"), None], "gloo", "1 of 3 participants have no GPU"),
        ([*gpus("a"), *gpus("b", nccl="2.30.3")], "gloo", "participants have NCCL 2.29.7 and 2.30.3"),
        (gpus("", ""), "gloo", "2 of 2 participants have no GPU"),
    ],
)
def test_auto_is_nccl_where_each_has_a_gpu_of_its_own(devices: list[DeviceFacts | None], backend: str, why: str) -> None:
    assert choose_backend("auto", devices) == (backend, why)


@pytest.mark.parametrize("wanted", ["gloo", "nccl"])
@pytest.mark.parametrize("devices", [gpus("a", "b"), gpus("a", "a"), gpus("", "b")], ids=["own", "shared", "none"])
def test_what_the_job_forces_is_taken(wanted: str, devices: list[DeviceFacts | None]) -> None:
    assert choose_backend(wanted, devices) == (wanted, f"placement.backend is {wanted}")


def test_nccl_on_cpus_is_refused_before_anything_starts() -> None:
    values = {
        "model": {"family": "vit"}, "task": {"kind": "image_classification"}, "data": {"source": "digits"},
        "training": {"steps": 1, "device": "cpu"}, "placement": {"backend": "nccl"},
    }  # fmt: skip
    with pytest.raises(
        JobError, match=r"placement\.backend is nccl and training.device is cpu; NCCL needs GPUs: use auto or gloo"
    ):
        parse_job(values)
