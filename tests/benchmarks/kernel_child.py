"""A process that takes engine steps on request, in the mode of MKL's reproducibility that its command line names.

    python -m tests.benchmarks.kernel_child SUBJECT MODE      MODE: a value of MKL_CBWR, or "none"

Each line on standard input is answered by one step and its processor seconds.
"""

import os
import sys
import time

import torch

from tests.benchmarks.stepper import Stepper
from tests.benchmarks.subjects import new_context


def main(subject: str, mode: str) -> None:
    if mode == "none":
        os.environ.pop("MKL_CBWR", None)  # MKL reads it when it first computes
    else:
        os.environ["MKL_CBWR"] = mode
    torch.set_num_threads(1)
    stepper = Stepper(new_context(subject))
    for _ in sys.stdin:
        started = time.process_time()
        stepper.step()
        print(time.process_time() - started, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
