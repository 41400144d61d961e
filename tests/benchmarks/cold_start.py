"""A worker process started from nothing: the cost of a restart. `python -m tests.benchmarks.cold_start SUBJECT WORKER FOLDER`.

FOLDER holds plan.json and a checkpoint; global rank 0 writes its store's port to FOLDER/port. The process prints one JSON line
when it is ready to train: the moment (CLOCK_MONOTONIC), and the seconds of each part since the interpreter's first lines.
"""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

STARTED = time.monotonic()
IMPORT_WAIT_SECONDS = 120.0


def main() -> None:
    """Import, build, load, meet the others and report ready; then wait for the end of standard input."""
    subject, worker_id, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    import frostline_trainer.process.worker  # noqa: F401 (the imports of a worker's process)
    from frostline_contract.plan import Plan
    from frostline_trainer.checkpoints.reading import read_manifest
    from frostline_trainer.checkpoints.restoring import restore_pieces
    from frostline_trainer.transport.collectives import open_store
    from tests.benchmarks.stepper import Stepper
    from tests.benchmarks.subjects import new_context
    from tests.forming import form_groups

    imported = time.monotonic()
    plan = Plan.model_validate_json((folder / "plan.json").read_text())
    context = new_context(subject)
    built = time.monotonic()
    checkpoint = folder / plan.checkpoint_path
    manifest = read_manifest(checkpoint)
    restore_pieces(context, context.moments, checkpoint, manifest, plan.needs(worker_id))
    loaded = time.monotonic()
    index = plan.placement.workers.index(worker_id)
    if index == 0:
        opened = open_store()
        (folder / "port.new").write_text(str(opened[1]))
        (folder / "port.new").replace(folder / "port")
    plan = plan.model_copy(update={"store_port": _port(folder)})
    groups = form_groups(plan, worker_id, "gloo", timedelta(seconds=120))
    stepper = Stepper(context, plan, index, groups)
    groups.moving.barrier()
    ready = time.monotonic()
    parts = {"import": imported - STARTED, "build": built - imported, "load": loaded - built, "meet": ready - loaded}
    print(json.dumps({"ready_at": ready, **parts}), flush=True)
    stepper.step()
    sys.stdin.read()
    groups.close()


def _port(folder: Path) -> int:
    deadline = time.monotonic() + IMPORT_WAIT_SECONDS
    while not (folder / "port").exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"global rank 0 wrote no {folder / 'port'} within {IMPORT_WAIT_SECONDS:g} s")
        time.sleep(0.01)
    return int((folder / "port").read_text())


if __name__ == "__main__":
    main()
