"""`python -m tests.mutants [NAME...]`: plant each bug in a copy and show that tests catch it. Exit status 1 if one is missed."""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.judge import judge
from tests.mutants.plant import copy_sources
from tests.mutants.table import MUTANTS


def main(arguments: list[str]) -> int:
    """Run from anywhere; the repository is where this file lies."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutants to plant; all where none is named")
    parser.add_argument("--list", action="store_true", help="print the table and plant nothing")
    options = parser.parse_args(arguments)
    if options.list:
        for mutant in MUTANTS:
            print(f"{mutant.name:<22} {mutant.bug}\n{'':<22} caught by {' '.join(mutant.tests) or 'nothing yet'}")
        return 0
    unknown = set(options.names) - {mutant.name for mutant in MUTANTS}
    if unknown:
        print(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(m.name for m in MUTANTS)}", file=sys.stderr)
        return 2
    chosen = [mutant for mutant in MUTANTS if not options.names or mutant.name in options.names]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="frostline-mutants-") as folder:
        copy = copy_sources(Path(__file__).resolve().parents[2], Path(folder) / "copy")
        verdicts = judge(copy, chosen, lambda line: print(line, flush=True))
    caught = sum(verdict.caught for verdict in verdicts)
    print(f"{caught} of {len(verdicts)} bugs caught in {time.monotonic() - started:.0f} s")
    return 0 if caught == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
