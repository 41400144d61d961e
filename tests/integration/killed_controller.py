"""A controller that is killed right after a durable write, before anybody hears of it: `python killed_controller.py WHAT ...`.

WHAT says which write: "prepared" (the first one with a prepared plan) or "decision" (the first one with a decision).
"""

import os
import signal
import sys

from frostline_controller import __main__ as program
from frostline_controller.state.durable import DurableState, DurableStore


class KilledAfterWriting(DurableStore):
    """The real store; its process does not survive the chosen write."""

    what = ""

    def write(self, old: DurableState, new: DurableState) -> None:
        super().write(old, new)
        happened = {"prepared": new.prepared is not None, "decision": len(new.decisions) > len(old.decisions)}
        if happened[self.what]:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    KilledAfterWriting.what = sys.argv[1]
    program.DurableStore = KilledAfterWriting
    sys.exit(program.main(sys.argv[2:]))
