"""Random faults on whole runs: python -m tests.chaos [--seed S] [--cases N] [--jobs J] [--out FILE]. Status 1 on any failure.

Case i of a series has the seed S + i, so one case is replayed by its own seed and CASES=1. The fixed table goes first.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.chaos.cases import Case
from tests.chaos.drawing import draw_case
from tests.chaos.fixed import fixed_cases
from tests.chaos.fixed_speed import at_share, that_can_run
from tests.chaos.report import case_line, failure_text, results, shortfalls, summary, table
from tests.chaos.running import Laboratory, Outcome, laboratory, write_json


def main(argv: list[str]) -> int:
    """Run a series and print its report."""
    arguments = _arguments(argv)
    wanted = arguments.only or ([] if arguments.random_only or arguments.cases == 1 else [case.name for case in fixed_cases()])
    fixed = [case for case in fixed_cases() if case.name in wanted]
    cases = [*fixed, *(draw_case(arguments.seed + number) for number in range(arguments.cases))]
    if arguments.worker_cpus:
        cases = [at_share(case, arguments.worker_cpus, len(os.sched_getaffinity(0))) for case in cases]
    if not cases:
        print(f"no case: --only knows {', '.join(case.name for case in fixed_cases())}", file=sys.stderr)
        return 2
    cases, skipped = that_can_run(cases)
    print("".join(f"{line}\n" for line in skipped), end="")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Short, because the paths of sockets begin with it.
    root = Path(arguments.keep or tempfile.mkdtemp(prefix="fc-")).resolve()
    root.mkdir(parents=True, exist_ok=True)
    print(f"seed {arguments.seed}: {len(cases)} cases, {arguments.jobs} at a time, in {root}", flush=True)
    started = time.monotonic()
    outcomes = []
    with laboratory(root) as made:
        for outcome in _outcomes(made, cases, arguments.jobs):
            outcomes.append(outcome)
            _print_outcome(outcome, len(outcomes), len(cases), time.monotonic() - started)
            if not outcome.problems and not arguments.keep:
                made.forget(outcome)
            if arguments.out:
                write_json(Path(arguments.out), results(arguments.seed, outcomes, time.monotonic() - started))
    print(f"\n{table(outcomes)}\n\n{summary(outcomes)}")
    missing = shortfalls(outcomes)
    for line in missing:
        print(f"shortfall: {line}")
    failed = [outcome for outcome in outcomes if outcome.problems]
    for outcome in failed:
        print(f"failed: {case_line(outcome)}\n{failure_text(outcome)}")
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if failed or missing else 0


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="seed of the first random case")
    parser.add_argument("--cases", type=int, default=200, help="random cases")
    parser.add_argument("--jobs", type=int, default=2, help="cases that run at the same time")
    parser.add_argument("--out", default="", help="file for the results as JSON")
    parser.add_argument("--keep", default="", help="folder for all run directories, kept; else only failed ones are")
    parser.add_argument("--only", action="append", default=[], help="these cases of the fixed table, by name")
    parser.add_argument(
        "--worker-cpus", type=float, default=0.0, metavar="SHARE", help="all cases on workers that have so much of a processor"
    )
    parser.add_argument("--random-only", action="store_true", help="without the fixed table")
    return parser.parse_args(argv)


def _outcomes(made: Laboratory, cases: list[Case], jobs: int) -> Iterator[Outcome]:
    """Yield each outcome as its case ends."""
    pool = ThreadPoolExecutor(jobs)
    waiting = [pool.submit(made.run, case) for case in cases]
    try:
        while waiting:
            done = [future for future in waiting if future.done()]
            waiting = [future for future in waiting if future not in done]
            for future in done:
                yield future.result()
            time.sleep(0.1)
    finally:
        for future in waiting:
            future.cancel()
        made.stop()
        pool.shutdown()


def _print_outcome(outcome: Outcome, number: int, total: int, seconds: float) -> None:
    left = seconds / number * (total - number)
    print(f"[{number}/{total}, {left / 60:.0f} min left] {case_line(outcome)}", flush=True)
    if outcome.problems:
        print(failure_text(outcome), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
