"""Compiles units with torch.compile: an option of the numerics (`training.compile`).

Each unit is compiled by itself, for the shapes and types of its inputs, in forward and backward. So the kernels of a unit do not
depend on where it is computed, nor on its neighbours. Equal workers get equal kernels from equal compilers; the probe's digest
includes the compiler's versions. If a unit cannot be compiled, the run ends with an error: a fallback to eager mode on some
members alone would give other bits there.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import nn

VERSIONS_MAX = 1 << 16
"""Compiled versions of one function that torch may keep: one for each kind of unit, mode, shape and type. Beyond its default, a
few, torch would silently fall back to eager mode."""
BACKEND = "inductor"

Runner = Callable[..., torch.Tensor]


def compiled(unit: nn.Module) -> Runner:
    """A unit's compiled forward (compiled at its first call). The unit itself does not change and keeps its weights."""
    import torch._dynamo.config as dynamo  # imported here because it takes a third of torch's own import time
    import torch._functorch.config as functorch

    functorch.donated_buffer = False  # a backward in two parts needs the unit's activations twice
    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = VERSIONS_MAX
    dynamo.fail_on_recompile_limit_hit = True
    return torch.compile(unit, backend=BACKEND, dynamic=False, fullgraph=True)


def check_compiler(device_type: str) -> None:
    """Raise ValueError, with the remedy, on a machine without the compiler that torch's own calls."""
    variable, programs = ("CC", ("gcc", "clang")) if device_type == "cuda" else ("CXX", ("g++", "clang++"))
    if BACKEND == "inductor" and not os.environ.get(variable) and not any(map(shutil.which, programs)):
        raise ValueError(
            f"training.compile is true, and this machine has neither {' nor '.join(programs)}; install one of "
            "them (in a cluster: in an image of your own, docs/gpus.md, Compiling), or set training.compile to false"
        )


@cache
def compiler_versions(device_type: str) -> str:
    """The versions that decide which kernels the compiler makes, beside torch's own, in words."""
    if device_type == "cuda":
        try:
            return f"compiled, triton {version('triton')}"
        except PackageNotFoundError:
            return "compiled, without triton"
    cpu = torch.backends.cpu.get_cpu_capability()
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return f"compiled for {cpu}, without a C++ compiler"
    printed = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, timeout=30, check=False)
    return f"compiled for {cpu}, {Path(compiler).name} {printed.stdout.strip()}"
