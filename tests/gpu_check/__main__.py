"""`python -m tests.gpu_check`: what only a GPU can show, in under 40 minutes, with a report (`make gpu-check`).

Without a GPU it says so, claims nothing and exits with 0. --device cpu rehearses: every part that makes sense without a GPU, over
gloo and over the simulated NCCL; its report says that it is a rehearsal. Exit status 1 where something does not hold, or a part
did not come to its end.
"""

import argparse
import datetime
import shutil
import sys
from pathlib import Path

from tests.gpu_check.harness import Interrupted, Orders, run_parts
from tests.gpu_check.machine import look
from tests.gpu_check.report import Report
from tests.gpu_check.table import PARTS, part_named

ROOT = Path(__file__).parents[2]


def main(argv: list[str] | None = None) -> int:
    options = _arguments().parse_args(argv)
    if options.list:
        for part in PARTS:
            print(f"{part.name:<12} {part.seconds:>4} s  {part.title}")
        return 0
    machine = look()
    if options.device == "cuda" and not machine.gpus:
        print(f"no GPU here ({machine.reason}): nothing was run and nothing is claimed. --device cpu rehearses the check.")
        return 0
    parts = [part_named(name) for name in options.only] if options.only else list(PARTS)
    out = options.out or ROOT / "runs" / f"gpu-check-{datetime.datetime.now(datetime.UTC):%Y%m%d-%H%M%S}"
    shutil.rmtree(out / "parts", ignore_errors=True)
    (out / "parts").mkdir(parents=True)
    gpus = len(machine.gpus) if options.device == "cuda" else 0
    report = Report(machine, options.device, options.quick, parts)
    report.write(out)

    def keep(outcome: object) -> None:
        report.outcomes.append(outcome)  # type: ignore[arg-type]
        report.write(out)

    try:
        run_parts(parts, Orders(options.device, options.quick, out / "parts", gpus, machine.nccl), keep)
    except Interrupted as interrupted:
        report.interrupted = str(interrupted)
        report.write(out)
    print(f"report: {out / 'report.md'}" + (f" (interrupted by {report.interrupted})" if report.interrupted else ""))
    return 0 if report.good else 1


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu_check", description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a rehearsal, which claims nothing of GPUs"
    )
    parser.add_argument("--only", action="append", choices=[part.name for part in PARTS], help="a part; may be repeated")
    parser.add_argument("--quick", action="store_true", help="the smallest sample of each part")
    parser.add_argument("--out", type=Path, help="folder of the report; default: a new one below runs")
    parser.add_argument("--list", action="store_true", help="print the parts and run nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
