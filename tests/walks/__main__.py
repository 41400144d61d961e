"""Prints the four walks of a real run, with their files: python -m tests.walks."""

import sys
import tempfile
from pathlib import Path

from tests.walks.traced_run import traced_run
from tests.walks.walks import read_walks


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, traced_run(Path(folder)) as (ended, recorded):
        if ended.code != 0:
            print(ended.story(), file=sys.stderr)
            return 1
        print("\n\n".join(walked.text() for walked in read_walks(recorded)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
