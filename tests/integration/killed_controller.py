"""A controller that is killed right after a durable write, before it announces it: `python killed_controller.py WHAT ...`.

WHAT names the write: "prepared" (the first one with a prepared plan), "switched" (the prepared plan becomes the current one),
"decision" (the first one with a decision), "forced" (the first one with a freeze by command), "unforced" (the same, right before
it), "paused" (the run waits for workers that had to go), "distrusted" (the first plan that goes back because of wrong bits) or
"claimed" (the result is claimed on the epoch object, and result.json not written yet).
"""

import os
import signal
import sys
from collections.abc import Mapping

from frostline_controller import __main__ as program
from frostline_controller.run import epochs, result
from frostline_controller.run.durable import DurableState, DurableStore


class KilledAfterWriting(DurableStore):
    """The real store; its process does not survive the chosen write."""

    what = ""

    def write(self, old: DurableState, new: DurableState, remove: Mapping[str, str] | None = None) -> None:
        forced = new.forced_freeze_point >= 0
        if self.what == "unforced" and forced:
            os.kill(os.getpid(), signal.SIGKILL)
        super().write(old, new, remove)
        happened = {
            "prepared": new.prepared is not None,
            "decision": len(new.decisions) > len(old.decisions),
            "forced": forced,
            "switched": old.prepared is not None and new.current == old.prepared,
            "paused": new.paused and new.state == "waiting",
            "distrusted": any(start.distrusts for start in new.lineages),
        }
        if happened.get(self.what):
            os.kill(os.getpid(), signal.SIGKILL)


def killed_after_claiming(*arguments: object) -> None:
    epochs.claim_result(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if sys.argv[1] == "claimed":
        result.claim_result = killed_after_claiming
    else:
        KilledAfterWriting.what = sys.argv[1]
        program.DurableStore = KilledAfterWriting
    sys.exit(program.main(sys.argv[2:]))
