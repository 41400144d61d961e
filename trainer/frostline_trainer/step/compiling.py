"""Units through torch's compiler: an option of the numerics (`training.compile`).

A unit is compiled for the shapes and types that it is given, in forward and backward, and nothing larger: so what is compiled is
the same wherever a unit is computed, and whatever is computed beside it. Equal workers get equal kernels from equal compilers;
the compiler's versions are a part of what the probe digests. Where a unit cannot be compiled the run ends and says so: one that
fell back to plain torch on some members alone would have other bits there.
"""

import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import nn

VERSIONS_MAX = 1 << 16
"""Of one function: each kind of unit, mode, shape and type has one. The library falls back to plain torch after few, silently."""
BACKEND = "inductor"

Runner = Callable[..., torch.Tensor]


def compiled(unit: nn.Module) -> Runner:
    """A unit's forward as the compiler makes it, at its first call; the unit stays what it is, and owns its weights."""
    import torch._dynamo.config as dynamo  # takes as long to import as a third of torch: for those who use it
    import torch._functorch.config as functorch

    functorch.donated_buffer = False  # a backward in two parts needs the unit's activations twice
    dynamo.recompile_limit = dynamo.accumulated_recompile_limit = VERSIONS_MAX
    dynamo.fail_on_recompile_limit_hit = True
    return torch.compile(unit, backend=BACKEND, dynamic=False, fullgraph=True)


@cache
def compiler_versions(device_type: str) -> str:
    """What decides which kernels a compiler makes, beside torch's version, in words."""
    if device_type == "cuda":
        try:
            return f"compiled, triton {version('triton')}"
        except PackageNotFoundError:
            return "compiled, without triton"
    cpu = torch.backends.cpu.get_cpu_capability()
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        return f"compiled for {cpu}, without a C++ compiler"
    told = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, timeout=30, check=False)
    return f"compiled for {cpu}, {Path(compiler).name} {told.stdout.strip()}"
