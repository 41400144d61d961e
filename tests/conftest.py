"""Settings of all tests: one thread for each process, so that numerics repeat and processes do not compete for the cores."""

import os
import runpy
from pathlib import Path

# Set before torch is imported, which reads its number of threads from here; importing torch for this alone costs seconds.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
from hypothesis import settings

import frostline_trainer  # noqa: F401  it chooses the kernels: the oracle computes in this process, by those that workers use
from tests import wide_rows
from tests.redis_fixture import redis_server, start_shard

settings.register_profile("frostline", deadline=None, print_blob=True)
settings.load_profile("frostline")

__all__ = ["redis_server", "start_shard"]


SLOW_DISK = Path(__file__).with_name("slow_disk")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-disk", type=float, default=0.0, metavar="SECONDS", help="let each fsync take so much longer on average"
    )


def pytest_configure(config: pytest.Config) -> None:
    wide_rows.chosen = config.getoption("markexpr")
    if seconds := config.getoption("slow_disk"):
        os.environ["FROSTLINE_TEST_SLOW_DISK"] = str(seconds)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(SLOW_DISK), os.environ.get("PYTHONPATH"))))
        runpy.run_path(str(SLOW_DISK / "sitecustomize.py"))
