"""What all tests share: one thread a process, so that numerics repeat and the cores are not fought over."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import settings

settings.register_profile("frostline", deadline=None, print_blob=True)
settings.load_profile("frostline")


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """The controller's and the cache server's tests pass without torch, too."""
    try:
        import torch
    except ModuleNotFoundError:
        return
    torch.set_num_threads(1)
