"""One process of the memory benchmark: `python -m tests.benchmarks.peak_child engine|loop SUBJECT STEPS` prints its peak."""

import os
import sys

import torch

from tests.benchmarks.footprint import peak_megabytes, resident_megabytes
from tests.benchmarks.plain_loop import PlainLoop
from tests.benchmarks.stepper import Stepper
from tests.benchmarks.subjects import new_context


def main() -> None:
    """Take the steps and print megabytes: resident after the imports, and the peak.

    The loop's process drops the context's own copy of the model first: a plain script has one.
    """
    way, subject, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    imported = resident_megabytes(os.getpid())
    context = new_context(subject)
    if way == "loop":
        stepper: PlainLoop | Stepper = PlainLoop(context)
        context.cut.units.clear()
        del context
    else:
        stepper = Stepper(context)
    for _ in range(steps):
        stepper.step()
    print(imported, peak_megabytes(os.getpid()))


if __name__ == "__main__":
    main()
