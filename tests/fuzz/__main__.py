"""`python -m tests.fuzz`: mutated input for whatever reads what others write. Exit status 1 where it finds something."""

import argparse
import logging
import sys

from tests.fuzz.file_subjects import SUBJECTS as FILES
from tests.fuzz.running import fuzz, fuzz_one
from tests.fuzz.wire_subjects import SUBJECTS as WIRES


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="of all subjects together; of one with --only")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="with --only: number of the first input")
    parser.add_argument("--only", help="one subject, by its name")
    options = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)  # what is passed over says so, a hundred thousand times
    kinds = {kind.name: kind for kind in (*WIRES, *FILES)}
    if options.only is None:
        findings = fuzz(list(kinds.values()), options.inputs, options.seed, print)
    elif options.only in kinds:
        subject = kinds[options.only]()
        findings = fuzz_one(subject, options.inputs, options.seed, print, options.first)
        subject.close()
    else:
        parser.error(f"--only is {options.only!r}; known are {', '.join(kinds)}")
    for finding in findings:
        print(f"FOUND {finding.subject}: {finding.what} ({finding.count} times)\n    again: python -m tests.fuzz {finding.again}")
    print("nothing undeclared" if not findings else f"{len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
