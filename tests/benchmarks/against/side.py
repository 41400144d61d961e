"""`python -m tests.benchmarks.against.side CASE`, in a tree: takes a turn for each line of standard input; answers in JSON."""

import json
import os
import signal
import sys
from importlib.util import find_spec

# Before any module imports torch, which reads its number of threads from this variable.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.benchmarks.against.cases import CASES


def main(name: str) -> None:
    """Answer until standard input ends. The first line of output names the places of the measured packages.

    SIGTERM raises an exception within a running turn, so that a case leaves no process behind.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of libraries and children must not mix with answers
    specs = [find_spec(package) for package in ("frostline_trainer", "frostline_controller", "frostline_contract")]
    case = CASES[name].make()
    print(json.dumps([spec.origin for spec in specs if spec is not None]), file=answers, flush=True)
    try:
        for _ in sys.stdin:
            print(json.dumps(vars(case.turn())), file=answers, flush=True)
    finally:
        case.close()


if __name__ == "__main__":
    main(sys.argv[1])
