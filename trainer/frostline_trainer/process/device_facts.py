"""What this process computes on and with, as it registers it (docs/adr/0011-devices.md). Everything here reads; nothing waits."""

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
"""cuBLAS numbers the parts of its version so: major, minor, patch."""


def device_facts(device: torch.device) -> DeviceFacts:
    """The facts of this process's device.

    Args:
        device: the worker's; on a CPU only host and libraries are told.
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


def device_uuid(visible: str, told: str) -> str:
    """The UUID as the agent gave it, where it gave one: of a MIG instance CUDA may tell its GPU's. told: by CUDA, bare."""
    if re.fullmatch(r"(GPU|MIG)-[^,\s]+", visible):
        return visible
    return told if told.startswith(("GPU-", "MIG-")) else f"GPU-{told}"


def host_identity() -> str:
    """The machine that this container shares with others: its kernel's boot id; empty where the kernel tells none."""
    return _text(BOOT).strip()


def library_versions() -> dict[str, str]:
    """Versions of what torch would compute and communicate with on a GPU; empty texts in a build without CUDA."""
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
    """Of the library that torch has loaded into this process, asked of itself; empty where none is. maps: /proc/self/maps."""
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
    """Out of the driver's own file, of the open and the closed kernel module alike; empty where it is not there."""
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)\s", text)
    return found[1] if found else ""


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
