"""`python -m tests.benchmarks.against.side CASE`, in a tree: takes a turn for each line of standard input, answers with JSON."""

import json
import os
import signal
import sys
from importlib.util import find_spec

# Before torch is imported by anybody: it takes its number of threads from here.
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.benchmarks.against.cases import CASES


def main(name: str) -> None:
    """Answer until standard input ends. The first line says where the packages that are measured come from.

    SIGTERM ends a turn that is under way as an exception does, so that a case leaves no process behind.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries and children print is no answer
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
