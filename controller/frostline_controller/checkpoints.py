"""Which checkpoint a run goes back to: the newest complete one (PROTOCOLS 6: the highest (lineage, step))."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CheckpointFound:
    """A complete checkpoint. path: its folder, relative to the checkpoint root."""

    path: str
    lineage: int
    step: int


def newest_checkpoint(root: Path) -> CheckpointFound | None:
    """The newest complete checkpoint under <epoch>/<generation>/<step>/, or None.

    A folder without a readable manifest.json is unfinished and does not count: the manifest is written last.
    """
    found = [checkpoint for manifest in sorted(root.glob("*/*/*/manifest.json")) if (checkpoint := _read(root, manifest))]
    return max(found, key=lambda checkpoint: (checkpoint.lineage, checkpoint.step), default=None)


def checkpoint_at(root: Path, step: int) -> CheckpointFound | None:
    """The newest complete checkpoint of one step, whose state a rollback asks for."""
    found = [checkpoint for manifest in sorted(root.glob(f"*/*/{step}/manifest.json")) if (checkpoint := _read(root, manifest))]
    return max(found, key=lambda checkpoint: checkpoint.lineage, default=None)


def _read(root: Path, manifest: Path) -> CheckpointFound | None:
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        return CheckpointFound(str(manifest.parent.relative_to(root)), int(content["lineage"]), int(content["step"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
