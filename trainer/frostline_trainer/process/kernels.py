"""Environment settings that choose the CPU libraries' kernels; they must be set before a library first computes.

MKL chooses its code by an operand's address, so that a product has other bits at another address (measured on AMD processors,
float32 and float64). Its strict mode of conditional numerical reproducibility prevents that: AUTO takes the best code for this
processor, STRICT makes it independent of addresses. Importing `frostline_trainer` sets it; MKL reads the variable at its first
computation. This file does not import torch.
"""

import os
from collections.abc import MutableMapping

CHOOSERS = ("MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
"""Environment variables by which MKL, oneDNN and torch's own kernels are chosen."""


def settle_kernels(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set MKL's mode of reproducibility in `environ`, unless the user has; the start-up probe detects the effect."""
    narrow = environ.get("MKL_ENABLE_INSTRUCTIONS") == "AVX2"  # AUTO would use AVX-512 in spite of it
    if not environ.get("MKL_CBWR"):
        environ["MKL_CBWR"] = "AVX2,STRICT" if narrow else "AUTO,STRICT"


def kernel_settings(environ: MutableMapping[str, str] = os.environ) -> str:
    """The variables of CHOOSERS that are set, for the probe's detail: "MKL_CBWR=AUTO,STRICT"."""
    return " ".join(f"{name}={environ[name]}" for name in CHOOSERS if environ.get(name))
