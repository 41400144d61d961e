"""The checkpoint to which a run goes back: the newest complete one of the current run epoch (docs/protocols.md 5.5)."""

import contextlib
import glob
import json
import uuid
from collections.abc import Iterable
from pathlib import Path

from frostline_contract.durable_files import NoHardLinks, make_folder_durably, try_to_link
from frostline_contract.epochs import EPOCHS_FOLDER, MANIFEST_PATTERN, FoundCheckpoint, newest, read_epochs, surviving
from frostline_contract.lineage import Cuts, LineageStart
from frostline_controller.run.patience import REMEDIES

NO_FOLDER = "make it a folder that this process may write to"
"""The remedy for an error that `REMEDIES` does not know."""
VOLUME_WITH_LINKS = "mount a volume there that has them, such as NFS, CephFS or a local disk"


def newest_checkpoint(root: Path, lineages: Iterable[LineageStart] = ()) -> FoundCheckpoint | None:
    """Return the newest complete checkpoint under the current run epoch, else exactly the one that it began from, else None.

    A checkpoint that a restore has undone does not count: it may be complete only after the run has gone back to an older one,
    and the records of its steps are undone too. Where all others are gone it counts all the same, rather than lose the run.

    Args:
        root: the checkpoint root.
        lineages: the run's, whose restores are meant.

    Raises:
        ValueError: the run epoch began from a checkpoint that is gone.
    """
    found, restores = found_checkpoints(root), Cuts(tuple(lineages)).restores()
    own = [one for one in found if restores.survives(one.lineage, one.step)]
    all_are_gone = not own and all(start.starts_at_step for start in restores.starts)
    return newest(read_epochs(root), found if all_are_gone else own)


def try_to_write(root: Path) -> None:
    """Write a file into a checkpoint root, link it, and remove both. Raises CannotWrite: such a run could not save its result.

    The remedy in its text is one that a run which has begun can follow too: its `checkpoint.uri` is fixed.
    """
    trial = root / f".trial.{uuid.uuid4().hex}"  # a draft's name: a start that is killed here has left nothing
    try:
        make_folder_durably(root)
        trial.write_bytes(b"0")
        try_to_link(trial)
        trial.unlink()
    except OSError as error:
        with contextlib.suppress(OSError):
            trial.unlink(missing_ok=True)
        if isinstance(error, NoHardLinks):
            reason, remedy = str(error), VOLUME_WITH_LINKS
        else:
            reason, remedy = error.strerror or str(error), REMEDIES.get(error.errno or 0, NO_FOLDER)
        raise CannotWrite(f"{root}: checkpoints cannot be written there ({reason}); {remedy}") from error


class CannotWrite(OSError):
    """Checkpoints cannot be written to the checkpoint root; the text has the reason and the remedy."""


class CheckpointsGone(RuntimeError):
    """A checkpoint root is empty although the run has written checkpoints there."""


def has_been_used(root: Path) -> bool:
    """Whether a run has used a checkpoint root: it has a checkpoint or the folder of run epochs."""
    return (root / EPOCHS_FOLDER).is_dir() or bool(found_checkpoints(root))


def newest_before(root: Path, step: int, lineages: Iterable[LineageStart]) -> FoundCheckpoint | None:
    """Return the newest complete checkpoint of a step before `step` on the run's own history; None where there is none."""
    cuts = Cuts(tuple(lineages))
    own = [one for one in surviving_checkpoints(root) if one.step < step and cuts.survives(one.lineage, one.step)]
    return max(own, key=lambda one: (one.place, one.path), default=None)


def surviving_checkpoints(root: Path) -> list[FoundCheckpoint]:
    """Return all complete checkpoints on the run's own history, oldest (lineage, step) first."""
    return surviving(read_epochs(root), found_checkpoints(root))


def found_checkpoints(root: Path) -> list[FoundCheckpoint]:
    """Return every complete checkpoint of any writer. A folder without a readable manifest is unfinished and does not count.

    Folders may vanish during the search: `Path.glob` would raise, the `glob` module skips them.
    """
    found = [_read(Path(root), Path(root, manifest)) for manifest in glob.iglob(MANIFEST_PATTERN, root_dir=root)]
    return [checkpoint for checkpoint in found if checkpoint is not None]


def _read(root: Path, manifest: Path) -> FoundCheckpoint | None:
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        path = manifest.parent.relative_to(root).as_posix()
        return FoundCheckpoint(path=path, lineage=int(content["lineage"]), step=int(content["step"]))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
