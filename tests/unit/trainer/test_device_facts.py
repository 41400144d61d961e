"""The device facts that a worker registers: read from the process, the driver's file and the libraries."""

import re

import pytest
import torch

from frostline_trainer.process.device_facts import (
    cublas_version,
    device_facts,
    device_uuid,
    driver_version,
    host_identity,
    library_versions,
)

OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)\nGCC version:  gcc 12\n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version:  gcc 11.4.0\n"


def test_the_drivers_version_is_read_from_both_kinds_of_module() -> None:
    assert (driver_version(OPEN), driver_version(CLOSED), driver_version("")) == ("570.86.15", "535.104.05", "")


@pytest.mark.parametrize(
    ("visible", "reported", "uuid"),
    [
        ("GPU-5d5b", "5d5b", "GPU-5d5b"),
        ("MIG-7089", "5d5b", "MIG-7089"),  # CUDA may report the GPU's value for an instance
        ("", "5d5b", "GPU-5d5b"),
        ("0,1", "5d5b", "GPU-5d5b"),
        ("GPU-1,GPU-2", "GPU-1", "GPU-1"),
    ],
)
def test_a_device_is_named_as_the_agent_named_it(visible: str, reported: str, uuid: str) -> None:
    assert device_uuid(visible, reported) == uuid


def test_a_worker_on_a_cpu_tells_its_machine_and_no_gpu() -> None:
    facts = device_facts(torch.device("cpu"))
    assert facts.host == host_identity() and re.fullmatch(r"[0-9a-f-]{36}", facts.host)
    assert (facts.name, facts.uuid, facts.multiprocessors, facts.driver) == ("cpu", "", 0, "")


@pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA")
def test_libraries_tell_their_versions_without_a_gpu() -> None:
    versions = library_versions()
    assert set(versions) == {"cuda", "cublas", "cudnn", "nccl"}
    assert all(re.fullmatch(r"\d+(\.\d+)*", version) for version in versions.values()), versions


def test_without_cublas_there_is_no_version() -> None:
    assert cublas_version("7f0000-7f1000 r-xp 00000000 00:00 0   /usr/lib/libcublasLt.so.13\n") == ""
