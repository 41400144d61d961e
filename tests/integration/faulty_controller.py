"""The real controller with planted failures and delays of its writes: `python faulty_controller.py --run-dir DIR ...`.

`DIR/planted.json` maps places to [how often, seconds of delay, whether the write then fails]. Places: the name of a journal
(`metrics.jsonl`), `state` (the patch of the durable state), `epoch` (a run epoch begins), `result.json`, `controller.address`.
"""

import errno
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from frostline_contract.annotations import FENCE
from frostline_controller import __main__ as program
from frostline_controller.cluster.local.backend import LocalBackend
from frostline_controller.recovery import plans as starting
from frostline_controller.run import epochs, store
from frostline_controller.run.journal import Journal

PLANTED = "planted.json"
_one_at_a_time = threading.Lock()
_planted = Path()


def meet(place: str) -> None:
    """Execute the delay and failure planted at a place."""
    with _one_at_a_time:
        left = json.loads(_planted.read_text()) if _planted.exists() else {}
        times, delay, fails = left.get(place, (0, 0.0, False))
        if times < 1:
            return
        left[place] = (times - 1, delay, fails)
        draft = _planted.with_suffix(".draft")
        draft.write_text(json.dumps(left))
        draft.replace(_planted)
    time.sleep(delay)
    if fails:
        raise OSError(errno.ENOSPC, f"No space left on device (planted at {place})")


def met_before(function: Callable[..., Any], place_of: Callable[..., str]) -> Callable[..., Any]:
    def planted(*arguments: Any) -> Any:
        if place := place_of(*arguments):
            meet(place)
        return function(*arguments)

    return planted


if __name__ == "__main__":
    _planted = Path(sys.argv[sys.argv.index("--run-dir") + 1]) / PLANTED
    Journal._write = met_before(Journal._write, lambda journal, data: journal.path.name)
    LocalBackend.patch_annotations = met_before(
        LocalBackend.patch_annotations, lambda backend, changes, tests: "state" if FENCE in tests else ""
    )
    starting.raise_epoch = met_before(epochs.raise_epoch, lambda root, plan: "epoch")
    store.replace_durably = met_before(store.replace_durably, lambda path, text: path.name)
    program.replace_durably = met_before(program.replace_durably, lambda path, text: path.name)
    sys.exit(program.main(sys.argv[1:]))
