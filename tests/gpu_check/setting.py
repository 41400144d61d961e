"""The setting of a part of the check: its device, its thoroughness, and the file of its findings."""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.gpu_check.findings import Findings

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    # cuBLAS repeats its bits with this workspace on any stream; later versions of torch do not ask for it any more.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
}
"""Of every process of the check, before torch is imported."""


@dataclass(frozen=True)
class Setting:
    """The setting of a part. device: "cuda", or "cpu" for a rehearsal. quick: the smallest sample of each part, for tests.

    folder: for the part's files. gpus: number of GPUs of this machine. nccl: the library's version, () where there is none.
    """

    device: str
    quick: bool
    folder: Path
    findings: Findings
    gpus: int
    nccl: tuple[int, ...]

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


def member_environment(index: int, count: int, gpus: int) -> dict[str, str]:
    """Return the variables of member `index` of `count`, to be set before it uses CUDA: a GPU of its own if there are enough,
    else a share.

    NCCL refuses two ranks with one (host, GPU). Up to 2.29 a separate host id for each process avoids that, by way of the
    loopback network; from 2.30 on the library has a setting for it.
    """
    found = {"CUDA_VISIBLE_DEVICES": str(index % gpus)} if gpus else {}
    if gpus >= count:
        return found
    shared = {"NCCL_HOSTID": f"frostline-check-{index}", "NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_SOCKET_IFNAME": "lo",
              "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}  # fmt: skip
    return found | shared


def put_member_environment(index: int, count: int, gpus: int) -> None:
    """Set `member_environment` in the calling process."""
    os.environ.update(member_environment(index, count, gpus))
