"""The C library's heap keeps what a step frees for the next step, and a new generation gives back what nobody uses."""

import subprocess
import sys

import pytest

PASSES = """
import os, resource, sys
import torch
from frostline_trainer.memory import forget_peak, settle_allocator

def one_pass():
    activations = [torch.ones(250_000) for _ in range(64)]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1] == "settled":
    settle_allocator(dict(item.split("=") for item in sys.argv[2:]))
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


def counted(*words: str) -> tuple[int, int]:
    """Page faults of five passes, and bytes that the process gave back after them."""
    said = subprocess.run([sys.executable, "-c", PASSES, *words], capture_output=True, text=True, check=True, timeout=120)
    faults, given_back = map(int, said.stdout.split())
    return faults, given_back


@pytest.mark.skipif(sys.platform != "linux", reason="page faults of glibc's heap")
def test_a_pass_takes_no_pages_that_the_one_before_it_freed() -> None:
    faults, given_back = counted("settled")
    assert faults < PAGES // 4, "five passes take fewer new pages than a quarter of one pass"
    assert given_back > PASS_BYTES // 2, "and a new generation gives them back"


@pytest.mark.skipif(sys.platform != "linux", reason="page faults of glibc's heap")
def test_a_users_own_setting_is_left_alone() -> None:
    plain, _ = counted("plain")
    assert plain > 2 * PAGES, "otherwise each pass takes its pages anew"
    faults, _ = counted("settled", "MALLOC_ARENA_MAX=2")
    assert faults > 2 * PAGES
