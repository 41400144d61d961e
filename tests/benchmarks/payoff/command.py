"""`make bench ARGS='--only payoff ...'`: go on with what is missing for some minutes, then write docs/comparison/payoff.md."""

import argparse
import datetime
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.payoff.going import KINDS, Asked, make_all, missing
from tests.benchmarks.payoff.lines import FILE, Lines
from tests.benchmarks.payoff.page import FOLDER, write_page
from tests.benchmarks.payoff.tasks import CAPS, PLACE, TASKS
from tests.benchmarks.payoff.text_sets import fetch_sets


def main(words: Sequence[str]) -> int:
    """Run one go of the benchmark. Returns exit status 0. A piece of work that fails ends the go with its error; finished pieces
    stay."""
    options = _arguments().parse_args(words)
    lines = Lines(options.out / FILE.name)
    asked = Asked(
        tasks=tuple(options.tasks),
        caps=tuple(options.caps),
        seeds=tuple(options.seeds),
        time_seeds=options.time_seeds,
        pairs=options.pairs,
        kinds=tuple(options.kinds),
        scale="small" if options.small else "whole",
        go=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S"),
        device=options.device,
    )
    if not options.page and any(TASKS[name].text for name in asked.tasks):
        fetch_sets(PLACE / "sets")
    if not options.page:
        make_all(missing(lines, asked), lines, options.minutes * 60.0, options.at_once)
    for path in write_page(lines, options.out):
        print(f"written: {path}")
    return 0


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make bench ARGS='--only payoff ...'",
        description="Time to the same accuracy; each finished run is kept, so go on later.",
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="begin nothing that would end later; default: 60")
    parser.add_argument("--tasks", type=_names(TASKS), default=tuple(TASKS), help=f"of {','.join(TASKS)}")
    parser.add_argument("--caps", type=_names(CAPS), default=CAPS, help=f"of {','.join(CAPS)}")
    parser.add_argument("--seeds", type=_range, default=range(10), help="FIRST-LAST, or one; default: 0-9")
    parser.add_argument("--time-seeds", type=int, default=3, help="so many of the seeds are timed; default: 3")
    parser.add_argument("--pairs", type=int, default=1, help="interleaved pairs of timed runs a seed; default: 1")
    parser.add_argument(
        "--kinds", type=_names(KINDS), default=("time", "accuracy"), help=f"of {','.join(KINDS)}; timed ones need a quiet machine"
    )
    parser.add_argument("--at-once", type=int, default=1, help="accuracy runs that go side by side; default: 1")
    parser.add_argument("--device", default="cpu", help="where accuracy runs compute: cpu or cuda; default: cpu")
    parser.add_argument("--small", action="store_true", help="the tasks' smaller variants; their figures stand apart")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of payoff.jsonl and its page; default: docs/comparison")
    parser.add_argument("--page", action="store_true", help="only write the page from the lines that are there")
    return parser


def _names(allowed: Sequence[str]):  # type: ignore[no-untyped-def]
    def parse(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        unknown = [name for name in found if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)} is none of {', '.join(allowed)}")
        return found

    return parse


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)
