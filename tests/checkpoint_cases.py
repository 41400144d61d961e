"""Small checkpoints for tests: two units whose content follows from the step, and a reader of all checkpoints of a root."""

from pathlib import Path

import torch

from frostline_contract.pieces import Pieces
from frostline_contract.plan import GenerationId
from frostline_trainer.checkpoints.reading import complete_checkpoints, load_piece
from frostline_trainer.checkpoints.retention import Retention
from frostline_trainer.checkpoints.writing import CheckpointWriter, Snapshot, WriterNotices
from frostline_trainer.step.unit_state import UnitState

NUM_UNITS = 2
TABLE = Pieces(NUM_UNITS)


def content(step: int, unit: int, values: int = 2) -> UnitState:
    return {"weight/a": torch.full((values,), float(10 * step + unit))}


def snapshot(root: Path, step: int, *, counter: int = 1, run_epoch: int = 0, units: tuple[int, ...] = (0, 1), stable: bool = True,
             publishes: bool = True, base: int | None = None, values: int = 2, **fields: object) -> Snapshot:  # fmt: skip
    """Return a member's share of the checkpoint `<run_epoch>/1.<counter>/<step>`."""
    generation = GenerationId(incarnation=1, counter=counter)
    made = Snapshot(
        root / str(run_epoch) / str(generation) / str(step),
        {unit: content(step, unit, values) for unit in units},
        {},
        TABLE,
        generation,
        {"lineage": 0, "step": step, **fields},
        publishes,
        GenerationId(incarnation=1, counter=base) if base is not None else None,
    )
    if stable:
        made.stable.set()
    return made


def new_writer(notices: WriterNotices | None = None, keep_last: int = 2, watch_steps: int = 0) -> CheckpointWriter:
    return CheckpointWriter(Retention(keep_last, watch_steps), notices or WriterNotices())


def write_all(*snapshots: Snapshot, notices: WriterNotices | None = None, keep_last: int = 2, watch_steps: int = 0) -> None:
    """Write all of `snapshots`, in order, with one writer."""
    writer = new_writer(notices, keep_last, watch_steps)
    for one in snapshots:
        writer.write(one)
    writer.close()


def steps_found(root: Path) -> list[int]:
    """Return the steps of all complete checkpoints, oldest first, after a check that every unit has the bytes of its step."""
    found = complete_checkpoints(root)
    for folder, manifest in found:
        for unit in range(NUM_UNITS):
            value = load_piece(folder, manifest, TABLE, unit)["weight/a"]
            assert bool((value == 10 * manifest["step"] + unit).all()), (folder, unit, value)
    return [manifest["step"] for _, manifest in found]
