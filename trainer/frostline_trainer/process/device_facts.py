"""Reads the facts of a worker's device and libraries for its registration (docs/adr/0011-devices.md), without waiting."""

import ctypes
import os
import re
from pathlib import Path

import torch

from frostline_contract.device import DeviceFacts
from frostline_trainer.process.gpus import VISIBLE

BOOT = Path("/proc/sys/kernel/random/boot_id")
DRIVER = Path("/proc/driver/nvidia/version")
MAPS = Path("/proc/self/maps")
CUBLAS_PROPERTIES = range(3)
"""cuBLAS' numbers for the parts of its version: major, minor, patch."""


def device_facts(device: torch.device) -> DeviceFacts:
    """The facts of this process's device.

    Args:
        device: the worker's; for a CPU the facts are of host and libraries only.
    """
    facts = {"host": host_identity(), **library_versions()}
    if device.type != "cuda":
        return DeviceFacts(**facts)
    properties = torch.cuda.get_device_properties(device)
    return DeviceFacts(
        name=properties.name,
        uuid=device_uuid(os.environ.get(VISIBLE, ""), str(properties.uuid)),
        multiprocessors=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        driver=driver_version(_text(DRIVER)),
        **facts,
    )


def device_uuid(visible: str, reported: str) -> str:
    """The device's UUID: the agent's, else CUDA's, which for a MIG instance may be its GPU's.

    Args:
        visible: CUDA_VISIBLE_DEVICES, with the UUID that the agent has chosen.
        reported: CUDA's UUID, bare.
    """
    if re.fullmatch(r"(GPU|MIG)-[^,\s]+", visible):
        return visible
    return reported if reported.startswith(("GPU-", "MIG-")) else f"GPU-{reported}"


def host_identity() -> str:
    """The machine's id, shared by all its containers: the kernel's boot id; empty if there is none."""
    return _text(BOOT).strip()


def library_versions() -> dict[str, str]:
    """Versions of the libraries with which torch computes and communicates on a GPU; empty texts in a build without CUDA."""
    if torch.version.cuda is None:
        return {}
    nccl = torch.cuda.nccl.version()
    return {
        "cuda": torch.version.cuda,
        "cublas": cublas_version(_text(MAPS)),
        "cudnn": str(torch.backends.cudnn.version() or ""),
        "nccl": ".".join(map(str, nccl[:3])) if isinstance(nccl, tuple) else str(nccl),
    }


def cublas_version(maps: str) -> str:
    """The version of the cuBLAS library that this process has loaded; empty if it has loaded none.

    Args:
        maps: text of /proc/self/maps.
    """
    loaded = re.search(r"\S*/libcublas\.so[.\d]*$", maps, re.MULTILINE)
    if loaded is None:
        return ""
    library, parts = ctypes.CDLL(loaded[0]), []
    for name in CUBLAS_PROPERTIES:
        value = ctypes.c_int()
        if library.cublasGetProperty(name, ctypes.byref(value)):
            return ""
        parts.append(value.value)
    return ".".join(map(str, parts))


def driver_version(text: str) -> str:
    """The driver's version from the text of its file, for the open and the closed kernel module; empty without such a file."""
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return found[1] if found else ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
