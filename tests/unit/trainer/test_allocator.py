"""The C library's heap keeps what a step frees for the next step, and a new generation gives back what nobody uses."""

import subprocess
import sys

import pytest

from frostline_trainer import memory

PASSES = """
import os, resource
import torch
from frostline_trainer.memory import forget_peak, settle_allocator

def one_pass():
    activations = [torch.ones(250_000) for _ in range(64)]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

settle_allocator({})
one_pass()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    one_pass()
faults, held = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, resident()
forget_peak(torch.device("cpu"))
print(faults, held - resident())
"""
PASS_BYTES = 64 * 1_000_000
PAGES = PASS_BYTES // 4096


@pytest.mark.skipif(sys.platform != "linux", reason="page faults of glibc's heap")
def test_a_pass_takes_no_pages_that_the_one_before_it_freed() -> None:
    """Of five passes the page faults, and the bytes given back after them."""
    said = subprocess.run([sys.executable, "-c", PASSES], capture_output=True, text=True, check=True, timeout=120)
    faults, given_back = map(int, said.stdout.split())
    assert faults < PAGES // 4, "five passes take fewer new pages than a quarter of one pass"
    assert given_back > PASS_BYTES // 2, "and a new generation gives them back"


@pytest.mark.parametrize(("variable", "settled"), [("PATH", 2), ("MALLOC_ARENA_MAX", 0), ("GLIBC_TUNABLES", 0)])
def test_a_users_own_setting_is_left_alone(variable: str, settled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Library:
        def mallopt(self, parameter: int, value: int) -> int:
            asked.append((parameter, value))
            return 1

    monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: Library())
    memory.settle_allocator({variable: "2"})
    assert len(asked) == settled
