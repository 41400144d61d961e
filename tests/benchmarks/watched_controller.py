"""The controller as `python -m frostline_controller` runs it, with a record of each long turn of its event loop.

A turn is the loop's work between two polls of its sockets and timers; during a turn no message is read. Turns of at least
LEAST_SECONDS become lines "<CLOCK_MONOTONIC seconds of its end> <its seconds>" of turns.txt in the run's folder.
"""

import logging
import selectors
import sys
import time
from pathlib import Path
from typing import Any

from frostline_controller.__main__ import arguments, serve
from frostline_rpc.event_loop import run_serving

LEAST_SECONDS = 0.01
FILE = "turns.txt"


class TimedSelector(selectors.DefaultSelector):
    """A selector that records the time between the end of one `select` and the next call of it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._file = open(path, "a", buffering=1)  # noqa: SIM115  (open for the process's life)
        self._answered = time.monotonic()

    def select(self, timeout: float | None = None) -> Any:
        now = time.monotonic()
        if now - self._answered >= LEAST_SECONDS:
            self._file.write(f"{now:.6f} {now - self._answered:.6f}\n")
        found = super().select(timeout)
        self._answered = time.monotonic()
        return found


def longest_turn(run_dir: Path, begin: float, end: float) -> float:
    """Return the seconds of the longest turn that ended between two moments; LEAST_SECONDS if all were shorter."""
    lines = [line.split() for line in (run_dir / FILE).read_text().splitlines()]
    return max((float(seconds) for at, seconds in lines if begin <= float(at) <= end), default=LEAST_SECONDS)


def main() -> int:
    logging.basicConfig(format="time=%(asctime)s level=%(levelname)s logger=%(name)s %(message)s", stream=sys.stderr)
    options = arguments(sys.argv[1:])
    return run_serving(serve(options), TimedSelector(options.run_dir / FILE))


if __name__ == "__main__":
    sys.exit(main())
