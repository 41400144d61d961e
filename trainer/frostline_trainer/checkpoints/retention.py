"""Retention: which checkpoints are kept, and removal of the files of killed writers."""

import contextlib
import glob
import logging
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path

from frostline_contract.durable_files import move_durably
from frostline_contract.epochs import read_epochs, surviving
from frostline_contract.plan import GenerationId
from frostline_trainer.checkpoints.files import PARTIAL, Before, remove_folder
from frostline_trainer.checkpoints.reading import is_complete, readable_checkpoints

log = logging.getLogger(__name__)
SWEEP_MAX = 32
"""Limit of folders that one sweep removes, since the checkpoint writer does this between checkpoints."""
_SWEPT = ".swept-"


@dataclass(frozen=True)
class Retention:
    """The rules of retention.

    Attributes:
        keep_last: number of newest checkpoints that are kept (at least two: a worker may be reading the one before the newest).
        watch_steps: steps after a freeze within which the guard may roll it back; the checkpoint right before it is kept that
            long.
    """

    keep_last: int
    watch_steps: int


def prune(root: Path, retention: Retention, run_epoch: int, before: Before) -> None:
    """Remove complete checkpoints that are not needed any more.

    Kept are the newest, the best by guard loss, the last one before a freeze and all to which a rollback may go back, the last
    one before the first read of the cache, the last one that an audit has covered, and the one from which the current epoch
    began.

    Args:
        root: the checkpoint root.
        retention: the rules.
        run_epoch: nothing is removed if this run epoch is over, since the run then belongs to a later one.
        before: called before each operation on the disk.
    """
    readable, versions = readable_checkpoints(root), read_epochs(root)
    found = [(root / one.path, readable[one]) for one in surviving(versions, readable)]
    if not found or versions[-1].run_epoch != run_epoch:
        return
    folders = [folder for folder, _ in found]
    keep = {*folders[-max(retention.keep_last, 2) :], root / versions[-1].start_from}
    scored = [(manifest["guard_loss"], folder) for folder, manifest in found if manifest.get("guard_loss") is not None]
    if scored:
        keep.add(min(scored, key=lambda one: one[0])[1])  # of equals the first: those after the best carry its loss too
    keep |= _before_freezes(found, retention.watch_steps) | _before_the_cache(found) | _audited(found)
    for folder in sorted(root / one.path for one in readable):
        if folder not in keep:
            remove_folder(folder, before)


def _before_freezes(found: list[tuple[Path, dict]], watch_steps: int) -> set[Path]:
    """Checkpoints right before a freeze: those to which the guard may still roll back, and the last one."""
    newest = found[-1][1]
    decisions = newest.get("state", {}).get("decisions", [])
    last_steps = {decision["effective_step"] - 1 for decision in decisions if decision["kind"] == "freeze"}
    taken = [(folder, fields["step"]) for folder, fields in found if fields.get("before_freeze") or fields["step"] in last_steps]
    return {folder for folder, step in taken if step >= newest["step"] - watch_steps} | {folder for folder, _ in taken[-1:]}


def _before_the_cache(found: list[tuple[Path, dict]]) -> set[Path]:
    """The last checkpoint before any cached value was used: the run goes back to it if a cached value is found to be wrong."""
    asked = found[-1][1].get("state", {}).get("cache_step", 0)
    before = [folder for folder, fields in found if not fields.get("state", {}).get("cache_step", 0)]
    return set(before[-1:]) if asked else set()


def _audited(found: list[tuple[Path, dict]]) -> set[Path]:
    """The last checkpoint that is not after the last audit: the run goes back to it if the next audit finds wrong bits."""
    audited_step = found[-1][1].get("state", {}).get("audited_step", 0)
    return set([folder for folder, fields in found if fields["step"] <= audited_step][-1:])


def sweep(published: Path, base: GenerationId | None, under_way: set[Path], before: Before) -> None:
    """Remove unfinished checkpoints that were begun before another one, at most SWEEP_MAX folders.

    Args:
        published: folder of that other checkpoint.
        base: a generation that may still be publishing, whose checkpoints stay; None: there is none.
        under_way: folders that this writer is writing, which stay.
        before: called before each operation on the disk.
    """
    root = published.parents[2]
    for gone in list(root.glob(f"{_SWEPT}*"))[:SWEEP_MAX]:
        if not is_complete(gone):
            shutil.rmtree(gone, ignore_errors=True)
    here, left = _place_of(published), SWEEP_MAX
    for folder in sorted(root / path for path in glob.glob("*/*/*", root_dir=root)):  # Path.glob would raise if a folder vanishes
        place = _place_of(folder)
        if here is None or place is None or place >= here or folder in under_way or not folder.is_dir():
            continue
        if base is not None and place[:3] == (here[0], base.incarnation, base.counter):
            continue
        if is_complete(folder):
            for partial in folder.glob(f"*{PARTIAL}"):
                partial.unlink(missing_ok=True)
        elif left > 0:
            left -= 1
            before("remove")
            _remove_unfinished(root, folder)


def _remove_unfinished(root: Path, folder: Path) -> None:
    """Remove a folder in one operation; if its writer is alive after all and has just completed it, the folder is put back."""
    gone = root / f"{_SWEPT}{uuid.uuid4().hex}"
    try:
        move_durably(folder, gone)
    except FileNotFoundError:
        return
    if is_complete(gone):
        move_durably(gone, folder)
        return
    log.info("unfinished checkpoint %s removed", folder)
    shutil.rmtree(gone, ignore_errors=True)
    with contextlib.suppress(OSError):  # it has another step's folder
        folder.parent.rmdir()


def _place_of(folder: Path) -> tuple[int, int, int, int, int] | None:
    """(run epoch, incarnation, counter, lineage, step) of a checkpoint's folder, None for anything else.

    The lineage is that of a rollback within the generation; 0: the generation's own, whose folders name none.
    """
    epoch, generation, step = folder.parts[-3:]
    numbers, _, lineage = generation.partition("-lineage-")
    incarnation, _, counter = numbers.partition(".")
    parts = (epoch, incarnation, counter, lineage or "0", step)
    if not all(part.isdigit() for part in parts):
        return None
    return int(epoch), int(incarnation), int(counter), int(lineage or 0), int(step)
