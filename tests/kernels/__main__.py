"""`python -m tests.kernels`: run the tests of bits again under each set of kernels that this machine would not choose by itself.

Then it prints the cost, on this processor, of kernels that do not depend on addresses.
Exit status 1 if a test failed under one of the sets. Arguments after `--` go to pytest.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from tests.benchmarks.kernels import strict_cost
from tests.benchmarks.measuring import surroundings

ROOT = Path(__file__).resolve().parents[2]

KERNELS: dict[str, dict[str, str]] = {
    "AVX2": {
        "MKL_CBWR": "AVX2,STRICT", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2",
    },
    "COMPATIBLE": {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
}  # fmt: skip
"""AVX2: for processors without AVX-512. COMPATIBLE: for all processors; there MKL's float32 rows depend on their place."""

TESTS = (
    "tests/integration/test_exactness_cache.py",
    "tests/integration/test_exactness_workers.py",
    "tests/integration/test_recovery_moves.py::test_a_member_dies_in_each_phase_on_two_by_two",
    "tests/integration/test_alignment.py",
    "tests/unit/trainer/test_tile_check.py",
    "tests/unit/trainer/test_families.py",
    "tests/unit/trainer/test_families_checkpoints.py",
)


COST_PAIRS = 20


def own_choice() -> str:
    """Return the name in KERNELS of the set that this machine would choose by itself; "" if that set is not in KERNELS."""
    return {"AVX2": "AVX2", "DEFAULT": "COMPATIBLE"}.get(torch.backends.cpu.get_cpu_capability(), "")


def cost_here() -> str:
    """Measure the cost here of the kernels that Frostline sets. Returns it in words, in seconds of processor time."""
    row = strict_cost("digits", COST_PAIRS)
    ratio = row.spread
    return (
        f"strict kernels on {surroundings()['device']}: {ratio.median:.3f} times the processor time of MKL's own choice "
        f"({ratio.low:.3f} to {ratio.high:.3f}, {COST_PAIRS} pairs of steps of the digits model)"
    )


def main(arguments: list[str]) -> int:
    more = arguments[1:] if arguments[:1] == ["--"] else arguments
    failed = []
    for name, variables in KERNELS.items():
        if name == own_choice():
            print(f"== kernels {name}: skipped, they are this machine's own choice, which `make test` runs", flush=True)
            continue
        print(f"== kernels {name}: {' '.join(f'{key}={value}' for key, value in variables.items())}", flush=True)
        started = time.monotonic()
        words = [sys.executable, "-m", "pytest", "-q", *TESTS, *more]
        code = subprocess.run(words, cwd=ROOT, env={**os.environ, **variables}, check=False).returncode
        print(f"== kernels {name}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - started:.0f} s", flush=True)
        failed += [name] if code else []
    print(f"== {cost_here()}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
