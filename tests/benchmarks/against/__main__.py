"""`make bench-against REV=...`: is this tree slower than that revision? Both take turns; exit status 1 where one is slower.

--only NAME measures one case (may be repeated); --pairs N takes N pairs of each; --processor judges by processor time where it
is known, for a machine that others use. REV=HEAD on an unchanged tree shows what noise alone gives.
"""

import argparse
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.against.cases import CASES, Sample
from tests.benchmarks.against.judging import judge
from tests.benchmarks.against.trees import ROOT, Side, check_out
from tests.benchmarks.measuring import rounded, surroundings

PHASES_SHOWN = 6


def main(words: list[str] | None = None) -> int:
    """Measure, print a row for each case and clock, keep every turn below `runs`. Exit status 2: a case could not be measured."""
    options = _arguments().parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as an exception, so that both sides are ended
    options.out.parent.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"revision": options.revision, "taken": surroundings(), "cases": {}}
    slower, failed = [], []
    with tempfile.TemporaryDirectory(prefix="frostline-against-") as folder:
        tree = check_out(options.revision, Path(folder))
        for name in options.only or CASES:
            try:
                new, old = measure(name, tree, options.pairs or CASES[name].pairs, Path(folder))
            except RuntimeError as error:
                failed.append(name)
                print(f"{name}: not measured: {error}", file=sys.stderr, flush=True)
                continue
            slower += [name] if is_slower(name, new, old, options.processor) else []
            results["cases"][name] = {"new": [vars(one) for one in new], "old": [vars(one) for one in old]}
            options.out.write_text(json.dumps(rounded(results), indent=1) + "\n")
    print(f"every turn is in {options.out}" + (f"; slower: {', '.join(slower)}" if slower else ""))
    return 2 if failed else 1 if slower else 0


def measure(name: str, tree: Path, pairs: int, folder: Path) -> tuple[list[Sample], list[Sample]]:
    """Take turns of this tree and of the other one: A B B A A B ..., after one turn of each that is not counted."""
    with Side(ROOT, name, folder / f"new-{name}.log") as ours, Side(tree, name, folder / f"old-{name}.log") as theirs:
        ours.await_ready()
        theirs.await_ready()
        samples: dict[Side, list[Sample]] = {ours: [], theirs: []}
        for pair in range(pairs + 1):
            for side in (ours, theirs) if pair % 2 else (theirs, ours):
                sample = side.turn()
                if pair:
                    samples[side].append(sample)
    return samples[ours], samples[theirs]


def is_slower(name: str, new: list[Sample], old: list[Sample], by_processor: bool) -> bool:
    """Print the case's rows. Returns whether the requested clock shows this tree to be slower."""
    words = {}
    for clock in ("seconds", "processor"):
        ours, theirs = ([getattr(sample, clock) for sample in side] for side in (new, old))
        if min(ours + theirs) <= 0:
            continue
        verdict = judge(ours, theirs)
        words[clock] = verdict.word
        milliseconds = (statistics.median(side) * 1e3 for side in (ours, theirs))
        print(f"{name:<16} {clock:<9} new / old {verdict.median:.3f} ({verdict.low:.3f} to {verdict.high:.3f}, "
              f"{verdict.count} pairs)  {'  /  '.join(f'{one:.4g}' for one in milliseconds)} ms  {verdict.word}",
              flush=True)  # fmt: skip
    for line in _phases(new, old):
        print(f"{'':<16} {line}", flush=True)
    clock = "processor" if by_processor and "processor" in words else "seconds"
    return words.get(clock) == "SLOWER"


def _phases(new: list[Sample], old: list[Sample]) -> Iterator[str]:
    """Yield the phases of a step whose medians differ most, if the turns are steps."""
    names = {name for sample in new + old for name in sample.parts}
    found = []
    for name in names:
        ours, theirs = (statistics.median(sample.parts.get(name, 0.0) for sample in side) * 1e3 for side in (new, old))
        found.append((abs(ours - theirs), f"{name} {ours:.3g} / {theirs:.3g} ms"))
    if found:
        yield "phases that differ most: " + ", ".join(words for _, words in sorted(found, reverse=True)[:PHASES_SHOWN])


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.against", description=__doc__)
    parser.add_argument("revision", help="commit, tag or branch that this tree is compared with")
    parser.add_argument("--only", action="append", choices=CASES, metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--pairs", type=int, help="of each case; default: from 6 to 40, as the case is long or short")
    parser.add_argument("--processor", action="store_true", help="judge by processor time where it is known")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "against.json", help="default: runs/against.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
