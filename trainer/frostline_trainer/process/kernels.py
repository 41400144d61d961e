"""Settings that choose the CPU libraries' kernels. They must be in the environment before a library first computes.

MKL chooses its code by the address of an operand, so that one product has other bits at another address (measured on AMD
processors, float32 and float64). Its strict mode of conditional numerical reproducibility ends that: AUTO takes the best code for
this processor, STRICT makes it independent of addresses. Importing `frostline_trainer` settles it; MKL reads the variable at its
first computation. torch itself is not imported here.
"""

import os
from collections.abc import MutableMapping

CHOOSERS = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
"""Environment variables by which MKL, oneDNN and torch's own kernels are chosen."""


def settle_kernels(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set MKL's mode of reproducibility in `environ`. What the user has set stays; the start-up probe says what it does."""
    narrow = environ.get("MKL_ENABLE_INSTRUCTIONS") == "AVX2"  # AUTO would go beyond it on a processor with AVX-512
    if not environ.get("MKL_CBWR"):
        environ["MKL_CBWR"] = "AVX2,STRICT" if narrow else "AUTO,STRICT"


def kernel_settings(environ: MutableMapping[str, str] = os.environ) -> str:
    """The variables of CHOOSERS that are set, for the probe's detail: "MKL_CBWR=AUTO,STRICT"."""
    return " ".join(f"{name}={environ[name]}" for name in CHOOSERS if environ.get(name))
